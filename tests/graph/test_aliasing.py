"""Inputs that are the same tensor or share memory: each input is still read at its own position."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from raddle import zoo
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.interpret import interpret
from raddle.graph.supervised import supervised

SIZE = 4
STATES = ("weight", "frozen", "buffer", "unregistered")
INPUTS = ("x", "y", "target", "other")

# How a tensor is made from an existing one.
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda t: t,
    "detached": lambda t: t.detach(),
    "a view": lambda t: t.view(SIZE, SIZE),
    "transposed": lambda t: t.T,
    "a part": lambda t: t[1:2].expand(SIZE, SIZE),
    "a copy": lambda t: t.clone(),
}


class Model(nn.Module):
    """Every tensor is used in a different way, so that the result shows if two are confused."""

    def __init__(self, states: dict[str, Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(states["weight"])
        self.frozen = nn.Parameter(states["frozen"], requires_grad=False)
        self.register_buffer("buffer", states["buffer"])
        self.unregistered = states["unregistered"]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.tanh(x @ self.weight) * self.frozen + self.buffer.sin()
        return h @ self.weight.T + 2 * y + 3 * self.unregistered


def loss_of(output: Tensor, target: Tensor, other: Tensor) -> Tensor:
    return F.mse_loss(output, target) + (output * other).mean()


@st.composite
def origins(draw: st.DrawFn) -> dict[str, tuple[str, str]]:
    """For each role of a tensor: the role it is made from, and how. The trained weight shares no memory."""
    made: dict[str, tuple[str, str]] = {}
    for role in STATES + INPUTS:
        sources = [r for r in made if role in INPUTS or r != "weight"]
        source = draw(st.sampled_from(["nothing", *sources]))
        made[role] = source, draw(st.sampled_from(sorted(WAYS)))
    return made


def build(origin_of: dict[str, tuple[str, str]]) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    for number, (role, (source, way)) in enumerate(origin_of.items()):
        generator = torch.Generator().manual_seed(number)
        fresh = torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64)
        made[role] = fresh if source == "nothing" else WAYS[way](made[source])
    return made


def assert_reads_right(graph: Graph, model: nn.Module, inputs: list[Tensor]) -> None:
    expected = loss_of(model(*inputs[:2]), *inputs[2:])
    (gradient,) = torch.autograd.grad(expected, [model.weight])
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    loss = interpret(graph, {**state, **dict(zip(graph.inputs, inputs, strict=True))})[graph.loss]
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, [model.weight])[0], gradient)


@settings(max_examples=30)
@given(origins(), st.sampled_from(["list", "mapping"]))
def test_inputs_that_alias_anything_are_read_by_their_place(
    origin_of: dict[str, tuple[str, str]], how: str
) -> None:
    made = build(origin_of)
    model = Model(made)
    targets = [made["target"], made["other"]]
    inputs: Any = [made["x"], made["y"]] if how == "list" else [{"x": made["x"], "y": made["y"]}]
    graph = capture(model, (*inputs, *targets), supervised(loss_of, targets=2))
    assert graph.inputs == ("x", "y", "target", "target1")
    assert_reads_right(graph, model, [made["x"], made["y"], *targets])
    separate = [made[role].clone() for role in INPUTS]
    other = capture(model, separate, supervised(loss_of, targets=2))
    assert graph.fingerprint() == other.fingerprint(), "plans must fit, whatever the example is"


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(7, 5), nn.Linear(5, 7)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.out(self.table(input_ids)).flatten(0, 1), labels.flatten())


def test_one_tensor_is_tokens_and_labels() -> None:
    ids = torch.randint(7, (2, 3))
    graph = capture(Tokens(), {"input_ids": ids, "labels": ids})
    assert graph.ops[0].inputs == ("table.weight", "input_ids")
    assert {"input_ids", "labels"} <= {name for op in graph.ops for name in op.inputs}


def test_a_tensor_twice_within_one_argument() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, pair: dict[str, Any]) -> Tensor:
            return (self.fc(pair["a"]) - pair["more"][0] * 2).mean()

    x = torch.randn(2, 3)
    graph = capture(Pair(), [{"a": x, "more": [x]}])
    assert [op.inputs for op in graph.ops][:2] == [
        ("pair.a", "fc.weight", "fc.bias"),
        ("pair.more.0",),
    ]


FILE = """
import raddle
import torch
from torch import nn
from torch.nn import functional as F

def build(batch=4):
    x = torch.randn(batch, 3)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh()), (x, x), raddle.supervised(F.mse_loss)
"""


def test_a_file_may_return_one_tensor_as_input_and_target(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(FILE)
    prints = set()
    for device in ("cpu", "meta"):
        work = zoo.load(f"{path}:build", device=device)
        graph = capture(work.model, work.batch, work.loss)
        assert [op.inputs[0] for op in graph.ops[:2]] == ["input", "0"]
        assert "target" in {name for op in graph.ops for name in op.inputs}
        prints.add(graph.fingerprint())
    assert len(prints) == 1


# -- shared memory that a step would change is refused -----------------------------------------------


def test_an_input_that_is_trained_is_refused() -> None:
    model = nn.Linear(4, 4)
    for x in (model.weight, model.weight[:2], model.weight.T):
        with pytest.raises(
            InputError, match="'input' shares memory with the trained parameter 'weight'"
        ):
            capture(model, (x,), supervised(lambda y: y.mean(), targets=0))
    assert capture(
        model, (model.weight.detach(),), supervised(lambda y: y.mean(), targets=0)
    ).inputs == ("input",)


def test_a_parameter_that_the_loss_holds_itself_is_refused() -> None:
    """It would be a constant there: without a gradient, and with the values before the first step."""
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    held = list(model.parameters())
    with pytest.raises(InputError, match="uses 'weight' through a variable of its own"):
        capture(
            model,
            (x,),
            supervised(lambda y: y.mean() + sum(p.square().sum() for p in held), targets=0),
        )
    graph = capture(
        model,
        (x,),
        supervised(
            lambda y: y.mean() + sum(p.square().sum() for p in model.parameters()), targets=0
        ),
    )
    assert sum("weight" in op.inputs for op in graph.ops) == 2


def test_parameters_that_share_memory_are_refused_and_neighbours_are_not() -> None:
    flat = torch.randn(32)

    def two(first: Tensor, second: Tensor) -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        model[0].weight.data, model[1].weight.data = first.view(4, 4), second.view(4, 4)
        return model

    with pytest.raises(InputError, match=r"'0.weight', which shares memory with '1.weight'"):
        capture(
            two(flat[:16], flat[8:24]),
            (torch.randn(2, 4),),
            supervised(lambda y: y.mean(), targets=0),
        )
    capture(
        two(flat[:16], flat[16:]), (torch.randn(2, 4),), supervised(lambda y: y.mean(), targets=0)
    )
