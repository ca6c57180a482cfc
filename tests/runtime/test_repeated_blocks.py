"""Repeated blocks are compiled once, and nothing is compiled after the second step.

A backend of torch.compile counts the graphs that it is given, forward and backward.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from functorch.compile import aot_module_simplified, make_boxed_func
from timeouts import HANG
from torch import Tensor, nn

import raddle
from raddle.graph.operator_kind import work
from raddle.graph.supervised import supervised
from raddle.program import repeated_blocks
from raddle.program.lower import lower
from raddle.program.program import Program
from raddle.program.repeated_blocks import Repetition, block_borders, longest_repetition
from raddle.program.segments import segments
from raddle.runtime.actions import Forward
from raddle.runtime.execution.compiled_functions import CompiledFunctions
from raddle.runtime.trainer import Trainer
from raddle.transport.join import join

WORDS, WIDTH, TOKENS = 11, 8, 6


@pytest.fixture(autouse=True)
def small_blocks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of these networks are too small to be worth a cut."""
    monkeypatch.setattr(repeated_blocks, "MIN_FLOPS", 0)


class CountingBackend:
    """Counts forwards with a backward, their backwards, and forwards without one; runs them as they are."""

    def __init__(self) -> None:
        self.forwards = self.backwards = self.inferences = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        return aot_module_simplified(
            graph, inputs, fw_compiler=self._forward, bw_compiler=self._backward,
            inference_compiler=self._inference,
        )  # fmt: skip

    def _forward(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        self.forwards += 1
        return make_boxed_func(graph.forward)

    def _backward(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        self.backwards += 1
        return make_boxed_func(graph.forward)

    def _inference(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        self.inferences += 1
        return make_boxed_func(graph.forward)

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.forwards, self.backwards, self.inferences


class Block(nn.Module):
    """A transformer's layer."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.dropout, self.attention_dropout = nn.Dropout(dropout), 0.0

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        heads = (
            layer(y).view(*x.shape[:2], 2, -1).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(
            *heads, dropout_p=self.attention_dropout, is_causal=True
        )
        x = x + self.dropout(y.transpose(1, 2).reshape(x.shape))
        return x + self.dropout(self.mlp(self.norm2(x)))


def transformer(layers: int, dropout: float = 0.2) -> nn.Module:
    torch.manual_seed(0)
    blocks = [Block(dropout) for _ in range(layers)]
    ends = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS), nn.Flatten(0, 1)
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, *ends).double()


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target.flatten())


def batch(samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(samples)
    x, y = torch.randint(WORDS, (2, samples, TOKENS), generator=generator)
    return x, y


def program_of(model: nn.Module, *, microbatches: int = 1) -> Program:
    x, y = batch(4)
    graph = raddle.capture(model, (x, y), supervised(loss))
    plan = raddle.plan(graph, cluster="local:1", method="data").plan
    return lower(graph, replace(plan, microbatches=microbatches, batch=4 * microbatches))


def trainer_of(model: nn.Module, backend: Any, *, microbatches: int = 1) -> Trainer:
    """A trainer on one rank; backend: of torch.compile, None: not compiled."""
    place = torch.device("cpu")
    functions = CompiledFunctions(None if backend is None else "default", backend=backend)
    return Trainer(
        model, program_of(model, microbatches=microbatches), lambda p: torch.optim.SGD(p, lr=0.1),
        join(place, None, HANG), place, loss=supervised(loss), functions=functions,
    )  # fmt: skip


def train(trainer: Trainer, *, microbatches: int) -> list[float]:
    """Two steps, a smaller batch and an evaluation."""
    sizes = [4 * microbatches, 4 * microbatches, 3 * microbatches]
    losses = [float(trainer.step(batch(samples))) for samples in sizes]
    return [*losses, float(trainer.evaluate(batch(sizes[0])))]


@pytest.mark.parametrize("microbatches", [1, 2])
def test_blocks_are_compiled_once(microbatches: int) -> None:
    """The counts do not depend on the number of layers, and do not grow after every way has run once."""
    losses_of, counts = partial(train, microbatches=microbatches), []
    for layers in (2, 4):
        torch.compiler.reset()
        backend = CountingBackend()
        trainer = trainer_of(transformer(layers), backend, microbatches=microbatches)
        plain = trainer_of(transformer(layers), None, microbatches=microbatches)
        for t in (trainer, plain):
            t.step(batch(4 * microbatches))
        # Before the blocks, a block, and after the blocks: a graph of each
        assert backend.counts == (3, 3, 0)
        assert losses_of(trainer) == pytest.approx(losses_of(plain), rel=1e-9)
        counts.append(backend.counts)
        assert losses_of(trainer) == pytest.approx(losses_of(plain), rel=1e-9)
        assert backend.counts == counts[-1]
        for t in (trainer, plain):
            t.close()
    assert counts[0] == counts[1]


def test_blocks_with_native_dropout_are_compiled_once() -> None:
    """They share a function, and each sets the random generator for its own masks."""
    for layers in (2, 4):
        torch.compiler.reset()
        model, backend = transformer(layers), CountingBackend()
        for block in model.modules():
            if isinstance(block, Block):
                block.attention_dropout = 0.2
        trainer = trainer_of(model, backend)
        for _ in range(3):
            trainer.step(batch(4))
        assert backend.counts == (3, 3, 0)
        forwards = [a for a in trainer.executor.rank_actions.actions if isinstance(a, Forward)]
        streams = [a.call.random_stream for a in forwards if a.call.random_stream]
        assert len(set(streams)) == len(streams) == layers
        trainer.close()


def test_a_model_without_repetition_is_one_graph() -> None:
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS), nn.Flatten(0, 1))
    program = program_of(model)
    assert len(segments(program, 0, compiled=True)) == 1


def test_blocks_are_cut_where_one_value_passes() -> None:
    """Borders lie after the second addition of a block, not where its operators first look alike."""
    program = program_of(transformer(3))
    before, *blocks, after = segments(program, 0, compiled=True)
    assert [op.name for op in before] == ["0"]
    assert [{op.name.split(".")[0] for op in block} for block in blocks] == [{"1"}, {"2"}, {"3"}]
    assert len({len(block) for block in blocks}) == 1
    assert after[0].name.startswith("4")
    assert [op for part in (before, *blocks, after) for op in part] == list(program.graph.ops)


def test_small_blocks_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a compiled segment takes the host longer than a GPU takes to compute a small block."""
    monkeypatch.undo()
    program = program_of(transformer(3))
    assert len(segments(program, 0, compiled=True)) == 1
    layer = sum(
        work(op, tile.box).flops
        for op in program.graph.ops
        if op.name.startswith("1")
        for tile in program.variants[0].tiles[op.name].tiles
    )
    monkeypatch.setattr(repeated_blocks, "MIN_FLOPS", layer)
    assert len(segments(program, 0, compiled=True)) == 5


def test_blocks_with_other_attributes_are_not_repeated() -> None:
    model = transformer(2)
    model[1].dropout.p = 0.5  # type: ignore[index, union-attr, assignment]
    program = program_of(model)
    assert not block_borders(program.variants[0], 0, program.graph.ops)


@pytest.mark.parametrize(
    ("text", "repetition"),
    [
        ("abcde", None),
        ("xabcabcaby", Repetition(3, 1, 9)),
        ("aaaa", Repetition(1, 0, 4)),
        ("abab" + "cde" * 2, Repetition(3, 4, 10)),
    ],
)
def test_the_longest_repetition(text: str, repetition: Repetition | None) -> None:
    assert longest_repetition(text) == repetition


def test_dropout_of_shared_blocks_differs() -> None:
    """Blocks share a function but not their masks: each has a number of its own as an argument."""
    trainer = trainer_of(transformer(3), CountingBackend())
    trainer.step(batch(4))
    calls = [a.call for a in trainer.executor.rank_actions.actions if type(a).__name__ == "Forward"]
    blocks = [call for call in calls if len(call.numbers) == 2]
    assert len(blocks) == 3
    assert len({call.code.function for call in blocks}) == 1
    assert len({int(n) for call in blocks for n in call.numbers}) == 6
    trainer.close()
