"""Gradients flow through values of every dtype that autograd supports, also between ranks."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
import torch
from equality import Task
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import SYNCS, random_plan
from torch import Tensor, nn
from torch.nn import functional as F

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.dtypes import carries_gradient, in_double
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans.plan import Plan
from raddle.plans.plan_file import from_dict, to_dict
from raddle.plans.tiling import Grid
from raddle.program.lower import lower
from raddle.runtime.clipping import clip
from raddle.searches.planning import plan_for
from raddle.transport.thread_transport import Hub
from raddle.zoo.losses import output_loss
from raddle.zoo.move import move_workload
from raddle.zoo.workload import Workload

DTYPES = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)


def gets_gradient(dtype: torch.dtype) -> bool:
    """Whether autograd accepts leaves of a dtype."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.empty(0, dtype=dtype).requires_grad_()
    except RuntimeError:
        return False
    return True


GRADED = [d for d in DTYPES if gets_gradient(d)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_autograd_and_the_graph_agree_on_what_carries_a_gradient(dtype: torch.dtype) -> None:
    assert carries_gradient(dtype) == gets_gradient(dtype)


# -- random chains of operators --------------------------------------------------------------------

# v: the value so far; w: a parameter of its dtype, features x features.
STEPS = [
    *(f"v.to({dtype})" for dtype in GRADED),
    *(f"torch.fft.{name}(in_double(v))" for name in ("fft", "rfft", "irfft", "ihfft")),
    "torch.view_as_complex(v.reshape(len(v), -1, 2))", "torch.view_as_real(v).flatten(1)",
    "torch.view_as_real(v.conj().clone()).flatten(1)", "v.real", "v.imag", "v.conj()", "v.conj().imag",
    "v.abs()", "v * (1 + 2j)", "v + v.conj()", "torch.complex(v, v * 2)", "torch.polar(v.abs(), v)",
    "v @ (v.mH @ v)", "v.detach() * v", "F.linear(v, w)", "w[0] * v", "torch.cat([v, v * 2], 1)",
    "v + w.sum(0)", "doubled_silently(v)",
]  # fmt: skip


def doubled_silently(v: Tensor) -> Tensor:
    y = v * 1
    with torch.no_grad():
        y.mul_(2)
    return y


class Chain(nn.Module):
    """Applies operations one after the other; the loss is the sum of squares of the result."""

    def __init__(self, steps: list[str], parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self.steps = steps
        names = {
            "torch": torch, "F": F, "in_double": in_double, "doubled_silently": doubled_silently,
        }  # fmt: skip
        self.calls = [eval(f"lambda v, w: {step}", names) for step in steps]
        self.weights = nn.ParameterDict(parameters)

    def value(self, x: Tensor) -> Tensor:
        v = x * self.weights["first"]
        for number, call in enumerate(self.calls):
            v = call(v, self.weights.get(f"w{number}"))
        return v

    def forward(self, x: Tensor) -> Tensor:
        v = in_double(self.value(x))
        return (torch.view_as_real(v) if v.is_complex() else v).square().mean()


def chain(wanted: list[str], dtype: torch.dtype) -> tuple[Chain, Tensor]:
    """A chain of those operations that run forward and backward and give finite values."""
    torch.manual_seed(0)
    x, steps = torch.rand(4, 8).add(0.5).to(dtype), []
    weights = {"first": torch.rand(8).add(0.5).to(dtype)}
    for step in wanted:
        more = dict(weights)
        if "w" in step.replace("view", ""):
            with torch.no_grad():
                like = Chain(steps, weights).value(x)
            more[f"w{len(steps)}"] = torch.rand(2 * (like.shape[-1],)).to(like.dtype)
        if runs(Chain([*steps, step], more), x):
            steps, weights = [*steps, step], more
    return Chain(steps, weights), x


def computes(dtype: torch.dtype) -> bool:
    """Whether this torch version can compute with a dtype, not only store it."""
    try:
        return runs(*chain([], dtype))
    except RuntimeError:
        return False


def runs(model: Chain, x: Tensor) -> bool:
    narrow = any(torch.finfo(p.dtype).bits < 64 for p in model.parameters())
    if narrow and "fft" in "".join(model.steps):
        return False  # its last bits depend on the memory address of a tensor
    try:
        model(x).backward()
        torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9).step()
    except RuntimeError:
        return False
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = sum(float(in_double(g).norm()) for g in gradients)
    return (
        len(gradients) == len(model.weights) and 0.01 < norm < 100 and gradients[0].numel() < 10**4
    )


STARTS = [dtype for dtype in GRADED if computes(dtype)]


def on_two(graph: Graph, devices: list[int], **more: Any) -> Plan:
    """A plan with every operator whole, on one of two devices."""
    tiles = {
        op.name: Grid(tuple((0, d.size) for d in op.space.dims), (device,))
        for op, device in zip(graph.ops, devices * len(graph.ops), strict=False)
    }
    return Plan(tiles, 2, **more)


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from(STEPS), min_size=1, max_size=5),
    st.sampled_from(STARTS),
    st.lists(st.integers(0, 1), min_size=1, max_size=8),
    st.sampled_from(SYNCS),
    st.integers(1, 2),
)
def test_gradients_through_any_type_equal_the_modules(
    steps: list[str], dtype: torch.dtype, devices: list[int], sync: str, microbatches: int
) -> None:
    """Operators are not split, so that rounding is equal; values of all dtypes are sent between devices."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about complex numbers of half precision
        model, x = chain(steps, dtype)
        task = Task(model, [x], steps=2, microbatches=microbatches, lr=0.01)
        if any(torch.finfo(p.dtype).bits < 32 for p in model.parameters()):
            # torch rounds updates of few elements differently, so slices would give other bits.
            sync = "allreduce"
        task.verify(on_two(task.graph, devices, sync=sync, steps=2, microbatches=microbatches))


@settings(max_examples=15)
@given(
    st.lists(st.sampled_from(STEPS), min_size=1, max_size=5),
    st.sampled_from([torch.float64, torch.complex128]),
    st.integers(0, 2**16),
    st.sampled_from(SYNCS),
)
def test_tiles_of_any_type_give_the_modules_gradients(
    steps: list[str], dtype: torch.dtype, seed: int, sync: str
) -> None:
    wide = [s for s in steps if not s.startswith("v.to(")]
    model, x = chain(wide, dtype)
    task = Task(model, [x])
    task.verify(random_plan(task.graph, 2, seed, sync=sync))


# -- the examples, and what else took complex numbers for real ones ------------------------


def ring(v: Tensor) -> Tensor:
    """Complex rotary embeddings."""
    return torch.view_as_real(torch.view_as_complex(v.reshape(-1, 4, 2)) * (1 + 2j))


SPECTRA = {
    "fft": lambda v: torch.fft.fft(v).real,
    "rfft": lambda v: torch.fft.irfft(torch.fft.rfft(v) * 2),
    "rotary": ring,
    "ihfft": lambda v: torch.fft.ihfft(v).abs(),  # ihfft returns a lazily conjugated tensor
}


class Through(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.function = nn.Linear(8, 8), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.first(x)).square().mean()


@pytest.mark.parametrize("name", SPECTRA)
def test_complex_values_cross_devices(name: str) -> None:
    torch.manual_seed(0)
    model = Through(SPECTRA[name]).double()
    task = Task(model, [torch.randn(4, 8, dtype=torch.float64)], steps=2)
    task.verify(on_two(task.graph, [0, 1], steps=2))
    task.verify(on_two(task.graph, [1, 1, 0], steps=2))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def test_an_output_that_is_complex_counts_in_the_loss_of_a_model_without_one() -> None:
    x = torch.randn(2, 3, dtype=torch.complex64)
    graph = capture(Complex(), (x,), supervised(output_loss, targets=0))
    assert "weight" in graph.differentiable()
    with torch.no_grad():
        y = Complex()(x)
    torch.testing.assert_close(output_loss(y), y.abs().square().mean())


def test_compressed_gradients_are_refused_for_complex_parameters() -> None:
    graph = capture(
        Complex(), (torch.randn(2, 3, dtype=torch.complex64),), supervised(output_loss, targets=0)
    )
    with pytest.raises(InputError, match=r"'weight' is complex64, which bfloat16 cannot hold"):
        lower(graph, on_two(graph, [0, 1], sync="allreduce:bf16"))


def test_the_norm_that_clips_counts_imaginary_parts() -> None:
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.complex128))
    parameter.grad = torch.tensor([3 + 4j, 12j], dtype=torch.complex128)
    theirs = nn.Parameter(parameter.detach().clone())
    theirs.grad = parameter.grad.clone()
    norm = clip(Hub(1).transport(0), torch.device("cpu"), [(parameter, True)], 1.0)
    assert norm == pytest.approx(float(nn.utils.clip_grad_norm_([theirs], 1.0)))
    torch.testing.assert_close(parameter.grad, theirs.grad)


class Loss(nn.Module):
    """Wraps a Hugging Face model; returns its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        return self.model(input_ids=ids, labels=labels).loss


def test_fnet_trains_as_the_module_does() -> None:
    hf = pytest.importorskip("transformers")
    config = hf.FNetConfig(
        vocab_size=31, hidden_size=8, num_hidden_layers=2, intermediate_size=12, hidden_dropout_prob=0.0,
        max_position_embeddings=8, tpu_short_seq_length=8,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Loss(hf.FNetForMaskedLM(config).double())
    task = Task(model, [torch.randint(31, (4, 6)), torch.randint(31, (4, 6))], steps=2)
    assert any(v.dtype.is_complex for v in task.graph.values.values())
    task.verify(on_two(task.graph, [0, 0, 1], steps=2))
    task.verify(random_plan(task.graph, 2, 0, steps=2))


def test_a_plan_of_a_complex_model_can_be_read_back() -> None:
    graph = capture(
        Complex(), (torch.randn(4, 3, dtype=torch.complex64),), supervised(output_loss, targets=0)
    )
    plan = plan_for(graph, cluster("local:2"), "data")
    assert plan.dtype == "float32"  # the dtype in which the model is built again
    assert from_dict(json.loads(json.dumps(to_dict(plan, graph))), graph).tiles == plan.tiles


def test_another_precision_keeps_imaginary_parts() -> None:
    model = Complex()
    before, x = model.weight.detach().clone(), torch.ones(2, 3, dtype=torch.complex64)
    work = move_workload(
        Workload("own", model, x, supervised(output_loss, targets=0)), "cpu", torch.float64
    )
    assert work.batch.dtype == model.weight.dtype == torch.complex128
    torch.testing.assert_close(model.weight.detach(), before.to(torch.complex128))
