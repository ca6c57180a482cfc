"""What capture keeps of a module, and what it says of one that it cannot take."""

from __future__ import annotations

import copy
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tilings import random_tiles
from torch import Tensor, nn

from raddle import zoo
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.interpret import interpret

FINGERPRINTS = pathlib.Path(__file__).with_name("fingerprints.json")


def same(
    model: nn.Module, inputs: Sequence[Tensor], loss: Callable[..., Tensor] | None = None
) -> Graph:
    """Captures and compares loss, gradients and buffers with the module, whole and under tilings."""
    model = model.double()
    loss = loss or (lambda y: y.square().mean())
    graph = capture(model, inputs, loss=loss)
    reference = copy.deepcopy(model)
    expected = loss(reference(*(x.clone() for x in inputs)))
    expected.backward()
    tensors = {**dict(model.named_parameters()), **{k: v.clone() for k, v in model.named_buffers()}}
    tensors.update(zip(graph.inputs, inputs, strict=True))
    for seed in (None, 0, 1):
        model.zero_grad()
        tiles = {} if seed is None else random_tiles(graph, seed)
        result = interpret(graph, tensors, tiles=tiles)
        result[graph.loss].backward()
        torch.testing.assert_close(result[graph.loss], expected)
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            if theirs.grad is None:
                assert ours.grad is None or not ours.grad.any()
            else:
                torch.testing.assert_close(ours.grad, theirs.grad)
        after = dict(reference.named_buffers())
        for name, before in model.named_buffers():
            now = result[graph.updates[name]] if name in graph.updates else before
            torch.testing.assert_close(now, after[name])
    return graph


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def module(forward: Callable[..., Any], **children: Any) -> nn.Module:
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, child in children.items():
                if isinstance(child, Tensor) and not isinstance(child, nn.Parameter):
                    self.register_buffer(name, child)
                else:
                    setattr(self, name, child)

        def forward(self, *args: Any) -> Any:
            return forward(self, *args)

    return Given()


# -- names ----------------------------------------------------------------------------------


def test_operators_carry_the_names_of_modules() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    graph = same(model, [randn(2, 3, 5, 5)])
    assert [op.name for op in graph.ops][:5] == ["0", "1.add", "1.moments", "1", "1.running"]
    assert {p.name for p in graph.parameters} == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert set(graph.updates) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert graph.batch == 2


def test_shared_parameters_have_one_name() -> None:
    embedding, output = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    output.weight = embedding.weight
    model = module(lambda m, x: m.output(m.embedding(x)), embedding=embedding, output=output)
    graph = same(model, [torch.randint(7, (3, 2))])
    assert graph.aliases == {"output.weight": "embedding.weight"}
    assert [p.name for p in graph.parameters] == ["embedding.weight"]
    assert sum("embedding.weight" in op.inputs for op in graph.ops) == 2


def test_a_module_called_twice() -> None:
    model = module(lambda m, x: m.bn(m.bn(m.fc(x)) * 2), fc=nn.Linear(3, 3), bn=nn.BatchNorm1d(3))
    graph = same(model, [randn(5, 3)])
    assert {"bn", "bn_1"} <= {op.name for op in graph.ops}


def test_frozen_and_unused_parameters() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "unused": nn.Linear(2, 2)})
    model["a"].bias.requires_grad_(False)
    graph = same(module(lambda m, x: m.d["a"](x), d=model), [randn(2, 3)])
    assert graph.values["d.a.bias"].role == "frozen"
    assert graph.values["d.unused.weight"].role == "parameter"
    assert "d.a.bias" not in graph.differentiable()


def test_names_do_not_collide() -> None:
    model = module(
        lambda m, seed: m.model(seed) + m.loss,
        model=nn.Linear(3, 3),
        loss=nn.Parameter(torch.ones(3)),
    )
    graph = same(model, [randn(2, 3)])
    assert {p.name for p in graph.parameters} == {"model.weight", "model.bias", "loss"}


# -- inputs and outputs ----------------------------------------------------------------------


def test_several_inputs_and_outputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x: Tensor, index: Tensor, scale: float = 2.0) -> dict[str, Any]:
            y = self.fc(x)
            return {"y": y, "more": (y[index] * scale, index + 1)}

    x, index = torch.randn(4, 3), torch.tensor([0, 2, 1, 3])
    graph = capture(Two(), {"x": x, "index": index}, loss=lambda out: out["y"].sum())
    assert graph.inputs == ("x", "index")
    assert len(graph.outputs) == 3
    assert graph.loss is not None
    assert capture(Two(), [x, index, 3.0]).inputs == ("x", "index")
    assert capture(Two(), [x, index]).loss is None


def test_a_scalar_output_is_the_loss() -> None:
    graph = capture(module(lambda m, x: m.fc(x).mean(), fc=nn.Linear(3, 1)), [torch.randn(2, 3)])
    assert graph.loss == "mean"


def test_letters_of_inputs_can_be_given() -> None:
    lstm = nn.LSTM(3, 4)
    graph = capture(lstm, [torch.randn(5, 2, 3)], dims={"input": "tnc"})
    assert graph.batch == 2
    gate = next(op for op in graph.ops if op.kind == "linear")
    assert [d.name for d in gate.space.dims] == ["n", "c", "k"]


# -- writes in place -----------------------------------------------------------------------------


def _writes_to_views(m: Any, x: Tensor) -> Tensor:
    x = m.fc(x)
    view = x[:, 1:3]
    x[:, 0] += 1
    view.mul_(2)
    x.view(-1)[2:4] = 0.5
    x.transpose(0, 1)[1] *= 3
    return F.relu_(x) + view.sum()


def _writes_through_narrow(m: Any, x: Tensor) -> Tensor:
    x = m.fc(x)
    a, b = x.narrow(1, 0, 2), x[:, 2:].unsqueeze(0).squeeze(0)
    a.add_(b)
    b.permute(1, 0).clamp_(min=-1)
    return x * a.sum()


def _keeps_an_average(m: Any, x: Tensor) -> Tensor:
    m.mean.lerp_(x.detach().mean(0), 0.1)
    m.count += 1
    m.window[1:] = m.window[:-1].clone()
    m.window[0] = m.mean.sum()
    return m.fc(x - m.mean) * m.count


def _writes_to_copies(m: Any, x: Tensor) -> Tensor:
    y = m.fc(x)
    copies = [y.t().reshape(-1), y.t().contiguous().view(-1), y.float().double().view(-1)]
    for z in copies:
        z[1] += 1
    alias = y.contiguous().to(y.dtype)
    alias[0] *= 2
    return sum(z.sum() for z in copies) * (y * y)


def _blocks(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        mean = m.fc(x).mean(0)
        m.mean.copy_(mean)
    with torch.autocast("cpu", enabled=False):
        y = m.fc(x) - mean
    return y * torch.max(y, mean)


@pytest.mark.parametrize(
    "forward",
    [_writes_to_copies, _blocks, _writes_to_views, _writes_through_narrow, _keeps_an_average],
)
def test_writes_in_place(forward: Callable[..., Tensor]) -> None:
    buffers = {"mean": torch.zeros(4), "count": torch.tensor(0), "window": torch.zeros(3)}
    same(module(forward, fc=nn.Linear(4, 4), **buffers), [randn(3, 4)])


def test_the_module_is_not_changed() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    capture(model, [torch.randn(4, 3)])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.training


# -- what cannot be split, what cannot be captured ---------------------------------------------------


def test_an_unknown_operator_is_opaque_and_correct() -> None:
    graph = same(module(lambda m, x: torch.linalg.inv(m.fc(x)), fc=nn.Linear(3, 3)), [randn(3, 3)])
    assert [op.label for op in graph.opaque] == ["linalg_inv"]
    assert set(graph.kinds(graph.opaque[0])) == {"-"}


def test_control_flow_on_values_is_refused_with_its_place() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(InputError) as error:
        capture(module(forward), [torch.randn(3)])
    message = str(error.value)
    assert f"{pathlib.Path(__file__).name}:" in message
    assert "if x.sum() > 0" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda m, x: x[x > 0].sum(), "depends on the data"),
        (lambda m, x: torch.bincount(x.long(), minlength=4), "depends on the data"),
    ],
)
def test_shapes_that_depend_on_data_are_refused_with_their_place(
    forward: Callable[..., Tensor], reason: str
) -> None:
    with pytest.raises(InputError, match=reason) as error:
        capture(module(forward), [torch.rand(3)])
    assert f"{pathlib.Path(__file__).name}:" in str(error.value)


def test_autocast_inside_forward_is_refused() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x.t()

    with pytest.raises(InputError, match="autocast"):
        capture(module(forward), [torch.rand(3, 3)])


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="cannot be captured"):
        capture(nn.Linear(3, 2), [torch.randn(2, 4)])


# -- fingerprints -------------------------------------------------------------------------------------


def fingerprint(name: str) -> str:
    work = zoo.load(name)
    return capture(work.model, work.inputs, targets=work.targets, loss=work.loss).fingerprint()


@pytest.mark.parametrize("name", [n for n in zoo.names() if n != "resnet1001"])
def test_fingerprints_are_those_recorded(name: str) -> None:
    """Recorded under torch 2.13; the same under 2.11. A change here makes users' plans foreign."""
    assert fingerprint(name) == json.loads(FINGERPRINTS.read_text())[name]


def test_fingerprints_tell_models_apart() -> None:
    def of(model: nn.Module, *shape: int) -> str:
        return capture(model, [torch.randn(*shape)]).fingerprint()

    every = {
        of(nn.Sequential(nn.Linear(3, 3)), 2, 3),
        of(nn.Sequential(nn.Linear(3, 3)), 4, 3),
        of(nn.Sequential(nn.Linear(3, 4)), 2, 3),
        of(nn.Sequential(nn.Linear(3, 3, bias=False)), 2, 3),
        of(nn.ModuleDict({"a": nn.Linear(3, 3)})["a"], 2, 3),
        of(nn.Sequential(nn.LeakyReLU(0.1)), 2, 3),
        of(nn.Sequential(nn.LeakyReLU(0.2)), 2, 3),
    }
    assert len(every) == 7
