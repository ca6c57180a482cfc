"""Traps: cases in which a careless executor gives wrong results without an error.

Each trap is a small module with a plan; the result must equal the plain module's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import SYNCS, random_plan, train_plain
from small_models import MODELS, make_plan, small
from torch import Tensor, nn
from torch.nn import functional as F

from raddle.graph.capture import capture
from raddle.graph.supervised import supervised
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.runtime.actions import Receive, Send, StartAllReduce
from raddle.runtime.build_actions import build_actions
from raddle.runtime.executor import Executor
from raddle.runtime.threads import run_threads
from raddle.transport.thread_transport import Hub

Loss = Callable[..., Tensor]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def assert_trains(
    model: nn.Module, loss: Loss, inputs: list[Tensor], targets: list[Tensor], tiles: dict[str, str],
    devices: int = 2, microbatches: int = 1, **more: Any,
) -> None:  # fmt: skip
    """Two steps with a plan equal two steps of the plain module. Operators not in `tiles`: on device 0."""
    model = model.double().train()
    graph = capture(model, (*inputs, *targets), loss and supervised(loss, targets=len(targets)))
    program = lower(
        graph, make_plan(graph, tiles, devices, steps=2, microbatches=microbatches, **more)
    )
    check(program)
    batches = [[(inputs, targets)] * microbatches] * 2
    losses, state = train_plain(copy.deepcopy(model), loss, batches, sgd)
    initial_state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    feed = dict(zip(graph.inputs, [*inputs, *targets], strict=True))
    result = run_threads(program, initial_state, sgd, lambda key: feed)
    assert result.losses == pytest.approx(losses, rel=1e-9)
    for name, tensor in result.state.items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-9, atol=1e-9, msg=name)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def total(y: Tensor) -> Tensor:
    return (y * y).sum()


# -- what autograd gives back ----------------------------------------------------------------------


class Twins(nn.Module):
    """The gradients of a and b are the same tensor, and the gradient of c has stride 0."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(numbers(4, 3)), nn.Parameter(numbers(4, 3) + 1)
        self.c = nn.Parameter(numbers(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.a + self.b) + self.c


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("sync", SYNCS)
def test_gradients_that_share_memory(microbatches: int, sync: str) -> None:
    split = {"add": "x2 @0,1", "add_1": "n/2 @0,1", "add_2": "n/2 @0,1"}
    assert_trains(
        Twins(), lambda y: y.sum(), [numbers(4, 3)], [], split, microbatches=microbatches, sync=sync
    )


class Shared(nn.Module):
    """One layer used twice: its gradient is complete after the second, in every micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.fc(x)))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("bucket", [0, 10**6])
def test_shared_parameters_and_micro_batches(split: bool, bucket: int) -> None:
    tiles = {"fc": "n/2 @0,1", "tanh": "c/2 @0,1", "fc_1": "c/2 @1,0"}
    assert_trains(
        Shared(),
        total,
        [numbers(4, 6)],
        [],
        tiles,
        microbatches=2,
        bucket=bucket,
        split_backward=split,
    )


def test_copies_count_once() -> None:
    """Each copy of a value gets the gradient from its own readers, and the loss counts only once."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh())
    tiles = {"0": "x2 @0,1", "1": "x2 @1,0", "2": "c/2 @0,1", "3": "x2 @0,1"}
    assert_trains(model, total, [numbers(4, 6)], [], tiles)


# -- losses and reductions ---------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_mean_divides_by_all_valid_targets(smoothing: float) -> None:
    """Most of the ignored targets are on one device."""
    targets = torch.tensor([-100, -100, -100, 1, 2, 0, 1, 2])

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(y, target, label_smoothing=smoothing)

    model = nn.Linear(5, 3)
    graph = capture(model.double(), (numbers(8, 5), targets), supervised(loss))
    for parts in ("n/2 @0,1", "n/(3,5) @1,0"):
        tiles = {op.name: parts for op in graph.ops if any(d.name == "n" for d in op.space.dims)}
        for last in ("@0", "x2 @0,1"):
            other_tiles = {op.name: last for op in graph.ops if op.name not in tiles}
            assert_trains(model, loss, [numbers(8, 5)], [targets], tiles | other_tiles)


def test_a_split_sum_adds_its_bias_once() -> None:
    model = nn.Sequential(nn.Linear(9, 4), nn.Tanh())
    assert_trains(model, total, [numbers(4, 9)], [], {"0": "k/(2,4,3) @0,1,2"}, 3)


class Normed(nn.Module):
    """The exact gradient of the convolution's bias is zero; only rounding errors remain."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


def test_global_batch_statistics() -> None:
    tiles = {
        "conv": "n/2 h/2 @0,1,1,0",
        "bn.moments": "n/2 h/2 @0,1,1,0",
        "bn": "n/2 h/2 @0,1,1,0",
        "relu": "h/2 @1,0",
    }
    assert_trains(Normed(), total, [numbers(4, 2, 6, 6)], [], tiles)


# -- borders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.MaxPool2d(3, stride=1, padding=1, dilation=1),
        nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
        nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=True),
        nn.AvgPool2d(2, stride=2, ceil_mode=True),
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
        nn.Upsample(scale_factor=2, mode="nearest"),
    ],
    ids=str,
)
@pytest.mark.parametrize("parts", ["h/2 @0,1", "h/2 w/3 @0,1,0,1,0,1", "h/(1,3) @1,0"])
def test_pools_on_tiles(pool: nn.Module, parts: str) -> None:
    """All inputs are negative, so that padding with zeros would change a maximum."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), pool)
    x = -numbers(2, 1, 7, 7).abs() - 5
    graph = capture(model.double(), (x,), supervised(total, targets=0))
    op = graph.op("1")
    height = next(d.size for d in op.space.dims if d.name == "h")
    if parts.startswith("h/("):
        parts = f"h/(1,{height - 1}) @1,0"
    tiles = {"0": "h/2 @1,0"}
    if not any(d.unsplittable for d in op.space.dims if d.name in "hw"):
        tiles["1"] = parts
    assert_trains(model, total, [x], [], tiles)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1, "same"])
def test_convolutions_on_tiles(stride: int, padding: Any) -> None:
    if padding == "same" and stride > 1:
        return
    first = nn.Conv2d(2, 3, 3, padding=1)
    model = nn.Sequential(first, nn.Conv2d(3, 4, 4, stride=stride, padding=padding, dilation=1))
    tiles = {"0": "h/3 w/2 @0,1,2,2,1,0", "1": "h/2 w/2 @2,1,0,1"}
    assert_trains(model, total, [numbers(2, 2, 11, 10)], [], tiles, 3)


def test_flatten_of_a_height_split_is_no_box() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Flatten(), nn.Linear(3 * 36, 4))
    for tiles in (
        {"0": "h/2 @0,1", "1": "c/2 @0,1", "2": "k/2 @0,1"},
        {"0": "h/2 @0,1", "1": "n/2 @0,1", "2": "c/2 @0,1"},
    ):
        assert_trains(model, total, [numbers(4, 1, 6, 6)], [], tiles)


# -- literals, views and writes in place ---------------------------------------------------------------


class InPlace(nn.Module):
    """A segment may start with an in-place operator on a value that another segment saved for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True)
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.conv(x))  # sigmoid saves its output for the backward
        z = y - 0.5
        z += 0.1
        return self.fc(self.relu(z).mean((2, 3)))


def test_writes_in_place_across_segments() -> None:
    tiles = {"conv": "n/2 @0,1", "sigmoid": "h/2 @1,0", "add": "h/2 @0,1", "relu": "c/2 @0,1"}
    assert_trains(InPlace(), total, [numbers(4, 1, 6, 6)], [], tiles)


class Recurrent(nn.Module):
    """The zero states of an LSTM are constants with the size of the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0])


class Heads(nn.Module):
    """chunk and getitem, views with constant sizes, attention with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, 2, 4).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


@pytest.mark.parametrize(("make", "shape"), [(Recurrent, (4, 5, 3)), (Heads, (4, 5, 8))])
def test_literal_sizes_are_those_of_the_tile(make: type[nn.Module], shape: tuple[int, ...]) -> None:
    model = make()
    graph = capture(model.double(), (numbers(*shape),), supervised(total, targets=0))
    for parts in ("n/2 @0,1", "n/(1,3) @1,0"):
        tiles = {
            op.name: parts
            for op in graph.ops
            if any(d.name == "n" and d.size == 4 and not d.unsplittable for d in op.space.dims)
        }
        assert_trains(model, total, [numbers(*shape)], [], tiles)


# -- transports -----------------------------------------------------------------------------------------

programs = settings(max_examples=25)(
    given(model=st.sampled_from(MODELS), devices=st.integers(2, 4), seed=st.integers(0, 10_000))
)


@programs
def test_both_ends_of_a_message_agree(model: str, devices: int, seed: int) -> None:
    """gloo aborts if a message is too long, fills only a part if it is short, and ignores dtypes."""
    graph = small(model)[1]
    program = lower(graph, random_plan(graph, devices, seed, microbatches=2))
    sent, awaited = set(), set()
    sums = []
    for device in range(devices):
        actions = build_actions(program, device, torch.device("cpu"))
        for action in actions.actions:
            if isinstance(action, Send):
                elements = sum(torch.Size(part.shape).numel() for part in action.parts)
                sent.add((device, action.peer, action.tag, elements, action.dtype))
            elif isinstance(action, Receive):
                awaited.add((action.peer, device, action.tag, action.elements, action.dtype))
        order = [
            (a.tag, actions.buckets[a.bucket])
            for a in actions.actions
            if isinstance(a, StartAllReduce)
        ]
        sums.append(order)
    assert sent == awaited
    for a in range(devices):  # all-reduces in different orders would be wrong without an error
        for b in range(devices):
            both = [
                [(t, k.devices, k.elements) for t, k in sums[d] if {a, b} <= set(k.devices)]
                for d in (a, b)
            ]
            assert both[0] == both[1]


def test_messages_arrive_in_buffers_of_their_own() -> None:
    """A transport writes behind autograd's back, so it must not write into tensors saved for backward."""
    _, graph = small("lenet-tiny")
    program = lower(graph, random_plan(graph, 2, 11, recompute=(), split_backward=False))
    hub = Hub(2)
    seen: list[int] = []
    for device in range(2):
        rank = Executor(program, hub.transport(device))
        for receive in rank.messages.early_receives[0].receives:
            rank.messages.post(receive)
        buffers = [expected._get_message() for expected in rank.messages.incoming.values()]  # type: ignore[attr-defined]
        assert all(b.is_contiguous() and not b.requires_grad for b in buffers)
        seen += [b.untyped_storage().data_ptr() for b in buffers]
    assert len(set(seen)) == len(seen) > 0


def test_sums_of_other_layouts_are_refused() -> None:
    transport = Hub(1).transport(0)
    with pytest.raises(AssertionError):
        transport.all_reduce((0,), 0, torch.zeros(4, 6).t())
