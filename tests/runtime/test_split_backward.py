"""A split backward (zero bubble) is compiled as two functions, and gives the gradients of one backward."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from timeouts import HANG
from torch import Tensor, nn

import raddle
from raddle.graph.supervised import supervised
from raddle.plans.notation import read_tiles
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.runtime.execution.compiled_functions import CompiledFunctions, NotCompiled
from raddle.runtime.execution.split_backward import SplitCall
from raddle.runtime.trainer import Trainer
from raddle.transport.join import join

STEPS = 2


class Model(nn.Module):
    """Layers of many kinds: convolution, batch norm, attention, layer norm, embedding, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU())
        self.embed, self.norm = nn.Embedding(8, 8), nn.LayerNorm(8)
        self.project, self.drop = nn.Linear(8, 24), nn.Dropout(0.3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        y = self.norm(self.before(x).transpose(1, 2) + self.embed(positions))
        q, k, v = self.project(y).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.head(self.drop(attended.transpose(1, 2).flatten(2))).transpose(1, 2)
        return result


def train(
    backend: Any,
    *,
    split: bool = True,
    precision: str = "float32",
    dtype: torch.dtype = torch.float64,
) -> tuple[list[float], dict[str, Tensor], CompiledFunctions]:
    """Trains on one rank; returns losses, parameters and the compiled functions. backend None: eager."""
    torch.manual_seed(0)
    model = Model().to(dtype)
    x, positions = torch.randn(4, 3, 6, dtype=dtype), torch.randint(8, (4, 6))
    y = torch.randint(4, (4, 6))
    loss = supervised(nn.functional.cross_entropy)
    graph = raddle.capture(model, (x[:2], positions[:2], y[:2]), loss)
    tiles = read_tiles(graph, "".join(f"{op.name}: @0\n" for op in graph.ops))
    plan = Plan(
        tiles, 1, microbatches=2, split_backward=split, bn="microbatch", precision=precision
    )
    functions = CompiledFunctions(None if backend is None else "default", backend=backend)
    place = torch.device("cpu")
    trainer = Trainer(
        copy.deepcopy(model), lower(graph, plan), lambda p: torch.optim.SGD(p, lr=0.1),
        join(place, None, HANG), place, loss=loss, functions=functions,
    )  # fmt: skip
    losses = [float(trainer.step((x, positions, y))) for _ in range(STEPS)]
    state = trainer.state_dict()
    trainer.close()
    return losses, state, functions


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-9, atol=1e-9, msg=name)


def test_compiled_phases_are_one_backward() -> None:
    losses, state, _ = train(None, split=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCompiled)
        split_losses, split_state, functions = train("aot_eager")
    assert split_losses == pytest.approx(losses, rel=1e-9)
    assert_equal(split_state, state)
    assert functions.seconds > 0


def test_phases_that_cannot_be_compiled_run_eagerly_and_are_named_once() -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("no such thing")

    _, state, _ = train(None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, refused, _ = train(refuse)
    sentences = [str(w.message) for w in caught if w.category is NotCompiled]
    assert len(sentences) == len(set(sentences))
    assert any("runs its split backward without torch.compile: " in s for s in sentences)
    assert_equal(refused, state)


def test_a_forward_that_can_be_compiled_runs_its_phases_eagerly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compiler refuses B and W alone: they run through one autograd graph of the plain function."""

    def refuse(*_: Any) -> Any:
        raise RuntimeError("no such thing")

    _, state, _ = train(None)
    monkeypatch.setattr(SplitCall, "phase", lambda split, phase: refuse)
    with pytest.warns(NotCompiled, match="runs its split backward without torch.compile: "):
        _, refused, functions = train("aot_eager")
    assert functions.compiled > 0
    assert_equal(refused, state)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_phases_compute_in_the_plans_precision(precision: str) -> None:
    _, eager, _ = train(None, precision=precision, dtype=torch.float32)
    _, compiled, _ = train("aot_eager", precision=precision, dtype=torch.float32)
    for name, tensor in eager.items():
        torch.testing.assert_close(compiled[name], tensor, rtol=1e-2, atol=1e-3, msg=name)
