"""What capture takes from a module, and its errors for modules that it cannot capture."""

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
from raddle.graph.supervised import supervised

FINGERPRINTS = pathlib.Path(__file__).with_name("fingerprints.json")


def capture_and_compare(
    model: nn.Module, inputs: Sequence[Tensor], loss: Callable[..., Tensor] | None = None
) -> Graph:
    """Captures a module; checks that loss, gradients and buffers are the same, also with random tiles."""
    model = model.double()
    loss = loss or (lambda y: y.square().mean())
    graph = capture(model, inputs, loss and supervised(loss, targets=0))
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


def make_module(forward: Callable[..., Any], **children: Any) -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, child in children.items():
                if isinstance(child, Tensor) and not isinstance(child, nn.Parameter):
                    self.register_buffer(name, child)
                else:
                    setattr(self, name, child)

        def forward(self, *args: Any) -> Any:
            return forward(self, *args)

    return Model()


# -- names ----------------------------------------------------------------------------------


def test_operators_carry_the_names_of_modules() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    graph = capture_and_compare(model, [randn(2, 3, 5, 5)])
    assert [op.name for op in graph.ops][:5] == ["0", "1.add", "1.moments", "1.running", "1"]
    assert {p.name for p in graph.parameters} == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert set(graph.updates) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert graph.batch == 2


def test_shared_parameters_have_one_name() -> None:
    embedding, output = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    output.weight = embedding.weight
    model = make_module(lambda m, x: m.output(m.embedding(x)), embedding=embedding, output=output)
    graph = capture_and_compare(model, [torch.randint(7, (3, 2))])
    assert graph.aliases == {"output.weight": "embedding.weight"}
    assert [p.name for p in graph.parameters] == ["embedding.weight"]
    assert sum("embedding.weight" in op.inputs for op in graph.ops) == 2


def test_a_module_called_twice() -> None:
    model = make_module(
        lambda m, x: m.bn(m.bn(m.fc(x)) * 2), fc=nn.Linear(3, 3), bn=nn.BatchNorm1d(3)
    )
    graph = capture_and_compare(model, [randn(5, 3)])
    assert {"bn", "bn_1"} <= {op.name for op in graph.ops}


def test_frozen_and_unused_parameters() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "unused": nn.Linear(2, 2)})
    model["a"].bias.requires_grad_(False)
    graph = capture_and_compare(make_module(lambda m, x: m.d["a"](x), d=model), [randn(2, 3)])
    assert graph.values["d.a.bias"].role == "frozen"
    assert graph.values["d.unused.weight"].role == "parameter"
    assert "d.a.bias" not in graph.differentiable()


def test_names_do_not_collide() -> None:
    model = make_module(
        lambda m, seed: m.model(seed) + m.loss,
        model=nn.Linear(3, 3),
        loss=nn.Parameter(torch.ones(3)),
    )
    graph = capture_and_compare(model, [randn(2, 3)])
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
    graph = capture(
        Two(), {"x": x, "index": index}, supervised(lambda out: out["y"].sum(), targets=0)
    )
    assert graph.inputs == ("x", "index")
    assert len(graph.outputs) == 3
    assert graph.loss is not None
    assert capture(Two(), [x, index, 3.0]).inputs == ("x", "index")
    assert capture(Two(), [x, index]).loss is None


def test_a_scalar_output_is_the_loss() -> None:
    graph = capture(
        make_module(lambda m, x: m.fc(x).mean(), fc=nn.Linear(3, 1)), [torch.randn(2, 3)]
    )
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


def _writes_every_second(m: Any, x: Tensor) -> Tensor:  # as rotary embeddings do
    x = m.fc(x)
    out = torch.empty_like(x)
    out[..., 0::2] = x[..., 1::2] * 2
    out[..., 1::2] = -x[..., 0::2]
    return out * out


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
    [
        _writes_to_copies,
        _blocks,
        _writes_to_views,
        _writes_through_narrow,
        _keeps_an_average,
        _writes_every_second,
    ],
)
def test_writes_in_place(forward: Callable[..., Tensor]) -> None:
    buffers = {"mean": torch.zeros(4), "count": torch.tensor(0), "window": torch.zeros(3)}
    capture_and_compare(make_module(forward, fc=nn.Linear(4, 4), **buffers), [randn(3, 4)])


def test_the_module_is_not_changed() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    capture(model, [torch.randn(4, 3)])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.training


# -- what cannot be split, what cannot be captured ---------------------------------------------------


def test_an_unknown_operator_is_opaque_and_correct() -> None:
    graph = capture_and_compare(
        make_module(lambda m, x: torch.linalg.inv(m.fc(x)), fc=nn.Linear(3, 3)), [randn(3, 3)]
    )
    assert [op.label for op in graph.opaque_ops] == ["linalg_inv"]
    assert set(graph.dim_kinds(graph.opaque_ops[0])) == {"-"}


def test_control_flow_on_values_is_refused_with_its_place() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(InputError) as error:
        capture(make_module(forward), [torch.randn(3)])
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
        capture(make_module(forward), [torch.rand(3)])
    assert f"{pathlib.Path(__file__).name}:" in str(error.value)


def test_autocast_inside_forward_is_refused() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x.t()

    with pytest.raises(InputError, match="autocast"):
        capture(make_module(forward), [torch.rand(3, 3)])


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="cannot be captured"):
        capture(nn.Linear(3, 2), [torch.randn(2, 4)])


# -- fingerprints -------------------------------------------------------------------------------------


def fingerprint(name: str) -> str:
    work = zoo.load(name)
    return capture(work.model, work.batch, work.loss).fingerprint()


@pytest.mark.parametrize("name", [n for n in zoo.names() if n != "resnet1001"])
def test_fingerprints_are_those_recorded(name: str) -> None:
    """Recorded with torch 2.13; the same with 2.11. If they change, plan files of users no longer fit."""
    assert fingerprint(name) == json.loads(FINGERPRINTS.read_text())[name]


def test_fingerprints_tell_models_apart() -> None:
    def fingerprint_of(model: nn.Module, *shape: int) -> str:
        return capture(model, [torch.randn(*shape)]).fingerprint()

    every = {
        fingerprint_of(nn.Sequential(nn.Linear(3, 3)), 2, 3),
        fingerprint_of(nn.Sequential(nn.Linear(3, 3)), 4, 3),
        fingerprint_of(nn.Sequential(nn.Linear(3, 4)), 2, 3),
        fingerprint_of(nn.Sequential(nn.Linear(3, 3, bias=False)), 2, 3),
        fingerprint_of(nn.ModuleDict({"a": nn.Linear(3, 3)})["a"], 2, 3),
        fingerprint_of(nn.Sequential(nn.LeakyReLU(0.1)), 2, 3),
        fingerprint_of(nn.Sequential(nn.LeakyReLU(0.2)), 2, 3),
    }
    assert len(every) == 7


# -- states: buffers and parameters that a step writes ------------------------------------------------


def _copies_a_buffer_first(m: Any, x: Tensor) -> Tensor:
    old = m.mean.clone()
    m.mean.add_(1)
    return m.fc(x) * old + m.mean


def _assigns_a_buffer(m: Any, x: Tensor) -> Tensor:
    m.mean = 0.9 * m.mean + 0.1 * x.detach().mean(0)
    return m.fc(x) - m.mean


def _swaps_buffers(m: Any, x: Tensor) -> Tensor:
    kept = m.mean.clone()
    m.mean.copy_(m.other)
    m.other.copy_(kept + x[0])
    return m.fc(x) * m.mean * m.other


def _statistics_in_a_view(m: Any, x: Tensor) -> Tensor:
    y = F.batch_norm(m.fc(x), m.both[0], m.both[1], training=True)
    return y * m.both.sum()


def _writes_without_gradient(m: Any, x: Tensor) -> Tensor:
    y = m.fc(x)
    with torch.no_grad():
        y[0].zero_()
        m.mean[0] = y.mean()
    z = y.sin()
    z.detach().mul_(2)
    return z * m.mean


def _goes_on_with_what_was_written_without_gradient(m: Any, x: Tensor) -> Tensor:
    """A write returns the tensor itself, which has a gradient although the write under no_grad has none."""
    y = m.fc(x)
    with torch.no_grad():
        y.mul_(2)
        z = y.sin_()
        fresh = y * 3
    y += fresh
    return z * y


def _writes_without_gradient_and_without_autocast(m: Any, x: Tensor) -> Tensor:
    """The block without autocast keeps the no_grad around it."""
    y = m.fc(x)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        y.mul_(3)
    with torch.autocast("cpu", enabled=False), torch.no_grad(), torch.enable_grad():
        z = y.sin()
    return z * y


def _writes_to_what_dropout_returns(m: Any, x: Tensor) -> Tensor:
    y = m.fc(x)
    z = F.dropout(y, 0.5, training=False)
    z += 1
    return y * y


def _constants(m: Any, x: Tensor) -> Tensor:
    return m.fc(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    "forward",
    [
        _copies_a_buffer_first,
        _assigns_a_buffer,
        _swaps_buffers,
        _statistics_in_a_view,
        _writes_without_gradient,
        _goes_on_with_what_was_written_without_gradient,
        _writes_without_gradient_and_without_autocast,
        _writes_to_what_dropout_returns,
        _constants,
    ],
)
def test_states(forward: Callable[..., Tensor]) -> None:
    buffers = {"mean": torch.zeros(4), "other": torch.ones(4), "both": torch.ones(2, 4)}
    capture_and_compare(make_module(forward, fc=nn.Linear(4, 4), **buffers), [randn(3, 4)])


def test_a_frozen_teacher_is_updated() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            m.teacher.mul_(0.9).add_(m.fc.weight, alpha=0.1)
        return m.fc(x) * m.teacher.sum()

    teacher = nn.Parameter(torch.ones(4, 4), requires_grad=False)
    graph = capture(make_module(forward, fc=nn.Linear(4, 4), teacher=teacher), [torch.randn(3, 4)])
    assert set(graph.updates) == {"teacher"}


class _Negated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


def _hooked(m: Any, x: Tensor) -> Tensor:
    y = m.fc(x)
    y.register_hook(lambda g: 2 * g)
    return y


def _reentrant(m: Any, x: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(lambda z: m.fc(z).sin(), m.fc(x), use_reentrant=True)


def _clamps_its_weight(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.fc.weight.clamp_(0, 1)
    return m.fc(x)


def _list_write(m: Any, x: Tensor) -> Tensor:
    torch._foreach_mul_([m.mean], 0.5)
    return m.fc(x)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda m, x: _Negated.apply(m.fc(x)), "autograd function '_Negated'"),
        (_hooked, "hook"),
        (_reentrant, "use_reentrant=False"),
        (_clamps_its_weight, "writes to the parameter 'fc.weight'"),
        (lambda m, x: torch.add(m.fc(x), 1, out=m.fc(x)), "out"),
        (_list_write, "writes in place"),
        (lambda m, x: m.fc(x).unsqueeze_(1), "shape in place"),
    ],
)
def test_what_would_be_lost_is_refused(forward: Callable[..., Tensor], reason: str) -> None:
    model = make_module(forward, fc=nn.Linear(4, 4), mean=torch.zeros(4))
    with pytest.raises(InputError, match=reason):
        capture(model, (torch.randn(3, 4),), supervised(lambda y: y.sum(), targets=0))
    assert torch.autograd.Function.apply.__func__.__name__ == "apply"  # put back


def test_tensors_without_elements_are_refused() -> None:
    with pytest.raises(InputError, match="no elements"):
        capture(nn.Linear(4, 4), [torch.randn(0, 4)])


def test_written_buffers_that_share_memory_are_refused() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        m.row.add_(1)
        return x * m.table.sum()

    table = torch.zeros(2, 4)
    model = make_module(forward, table=table, row=table[0])
    with pytest.raises(InputError, match="'row', which shares memory with 'table'"):
        capture(model, [torch.randn(3, 4)])


def test_a_checkpoint_without_reentry() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(
            lambda z: m.fc(z).sin(), m.fc(x), use_reentrant=False
        )

    capture_and_compare(make_module(forward, fc=nn.Linear(4, 4)), [randn(3, 4)])


def test_attributes_that_are_no_buffers() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.count = nn.Linear(4, 4), torch.zeros(())

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            self.seen = x.mean()
            return self.fc(x)

    model = Counts()
    with pytest.raises(InputError, match="keep what changes in a buffer"):
        capture(model, [torch.randn(3, 4)])
    assert model.count == 0
    assert not hasattr(model, "seen")


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (lambda y: 3.0, "the loss is a float"),
        (lambda y: y.sum(0), r"of shape \(4,\)"),
        (lambda y: y.sum().long(), "torch.int64"),
    ],
)
def test_a_loss_is_one_scalar(loss: Callable[..., Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        capture(nn.Linear(4, 4), (torch.randn(3, 4),), supervised(loss, targets=0))


def test_a_loss_module_keeps_its_weights_to_itself() -> None:
    model = make_module(lambda m, x: m.loss(x), loss=nn.Linear(4, 5))
    weights = torch.arange(1.0, 6).double()
    target = torch.tensor([0, 1, 2])
    capture_and_compare(model, [randn(3, 4)], lambda y: nn.CrossEntropyLoss(weights)(y, target))
    graph = capture(model, (randn(3, 4), target), supervised(nn.CrossEntropyLoss(weights)))
    assert {p.name for p in graph.parameters} == {"loss.weight", "loss.bias"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((lambda x: x, [torch.ones(2)]), "takes an nn.Module"),
        ((nn.Linear(2, 2), (torch.ones(2, 2),), "mse"), "the loss is a str: give loss"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        capture(*arguments)


def test_wrong_letters() -> None:
    for dims in ({"input": "n"}, {"input": "nn"}, {"input": "N1"}, {"other": "nc"}):
        with pytest.raises(InputError, match="dims"):
            capture(nn.Linear(2, 2), [torch.ones(2, 2)], dims=dims)


def test_lists_and_mappings_as_inputs() -> None:
    model = make_module(lambda m, x, y: m.fc(x[0]) * x[1] + y["z"], fc=nn.Linear(2, 2))
    graph = capture(model, [[torch.ones(3, 2), torch.ones(3, 1)], {"z": torch.ones(2)}])
    assert len(graph.inputs) == 3
