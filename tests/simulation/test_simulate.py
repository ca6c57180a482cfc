"""The simulator: rules on small examples, invariants on random plans, the engine against plain Python."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import cluster_named, random_plan
from small_models import MODELS, make_plan, mlp, small
from torch import Tensor, nn

from raddle.clusters import Cluster, Device, Link
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.program.lower import lower
from raddle.program.program import Move, Reduce, Run, message_bytes
from raddle.simulation.engine import run_tasks
from raddle.simulation.timeline import Timeline, simulate

# -- rules, by hand -------------------------------------------------------------------------------

# A device of the toy cluster takes 1000 ns for every operator and gradient of any size; a message holds its
# links for 1 ns per byte and arrives 10,000 ns later. All times below are in nanoseconds.


def toy(
    *overheads: float,
    duplex: bool = True,
    shared: bool = False,
    host_overhead: dict[str, float] | None = None,
    bandwidth: float = 1e9,
) -> Cluster:
    devices = [
        Device(
            f"toy{i}", 0, {"float32": 1e30}, 10**9, 1e30, overhead=o * 1e-9,
            host_overhead={name: ns * 1e-9 for name, ns in (host_overhead or {}).items()},
        )
        for i, o in enumerate(overheads)
    ]  # fmt: skip
    link = Link(bandwidth, 10_000e-9, duplex, shared) if len(devices) > 1 else None
    return Cluster("toy", tuple(devices), (link,), (None,))


class Pair(nn.Module):
    """a = fc1(x), b = fc2(x), both [2 8]: 64 bytes each."""

    def __init__(self, end: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.end = nn.Linear(4, 8), nn.Linear(4, 8), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.a(x), self.b(x))


def pair(end: Callable[[Tensor, Tensor], Tensor]) -> Graph:
    return capture(Pair(end), (torch.zeros(2, 4),), supervised(lambda y: y.sum(), targets=0))


def runs(timeline: Timeline, op: str, phase: str = "F") -> dict[int, tuple[int, int]]:
    """By device, when an operator starts and ends."""
    return spans(timeline, lambda i: isinstance(i, Run) and (i.op, i.phase) == (op, phase))


def message(timeline: Timeline, value: str, kind: str = "activation") -> tuple[int, int]:
    times = spans(timeline, lambda i: isinstance(i, Move) and (i.value, i.kind) == (value, kind))
    assert len(times) == 1
    return next(iter(times.values()))


def spans(timeline: Timeline, is_chosen: Callable[[Any], bool]) -> dict[int, tuple[int, int]]:
    number = next(n for n, i in enumerate(timeline.program.instructions) if is_chosen(i))
    chosen = (timeline.tasks.instruction == number) & (timeline.tasks.first_resource >= 0)
    return {
        int(timeline.tasks.device[t]): (int(timeline.start[t]), int(timeline.end[t]))
        for t in np.flatnonzero(chosen)
    }


def test_a_device_does_one_thing_after_the_other() -> None:
    timeline = simulate(lower(mlp(), make_plan(mlp(), {}, 1)), toy(1000))
    #        fc1  relu fc2  sum  | sum  fc2  relu fc1 | 4 updates
    # fc2 has three gradients (input, weight, bias), fc1 two: its input needs none.
    assert timeline.start.tolist() == [
        0, 1000, 2000, 3000, 4000, 5000, 8000, 9000, 11000, 12000, 13000, 14000,
    ]  # fmt: skip
    assert timeline.end.tolist() == [*timeline.start[1:].tolist(), 15000]
    assert timeline.total_seconds == 15e-6


def test_a_transfer_waits_for_its_link_but_not_for_the_arrival_of_the_one_before() -> None:
    graph = pair(lambda a, b: a + b)
    timeline = simulate(
        lower(graph, make_plan(graph, {"add": "@1"}, 2)), toy(1000, 1000, bandwidth=1e7)
    )
    assert runs(timeline, "a") == {0: (0, 1000)}
    assert runs(timeline, "b") == {0: (1000, 2000)}
    assert message(timeline, "a") == (1000, 1000 + 6400 + 10_000)
    assert message(timeline, "b") == (7400, 7400 + 6400 + 10_000)  # ready at 2000
    assert runs(timeline, "add") == {1: (23_800, 24_800)}


@pytest.mark.parametrize(
    ("duplex", "shared", "second"),
    [(True, False, 1000), (False, False, 1064), (True, True, 1000), (False, True, 1064)],
)
def test_duplex_links_carry_both_ways_at_once(duplex: bool, shared: bool, second: int) -> None:
    graph = pair(lambda a, b: a * b + (a + b))
    tiles = {"b": "@1", "mul": "@0", "add": "@1", "add_1": "@0"}
    program = lower(graph, make_plan(graph, tiles, 2))
    timeline = simulate(program, toy(1000, 1000, duplex=duplex, shared=shared))
    assert runs(timeline, "a") == {0: (0, 1000)}
    assert runs(timeline, "b") == {1: (0, 1000)}
    assert message(timeline, "a") == (1000, 11064)  # to the sum on 1
    assert message(timeline, "b") == (second, second + 10064)  # to the product on 0


def test_an_all_reduce_starts_with_its_last_participant() -> None:
    tiles = {"fc1": "n/2 @0,1", "relu": "n/2 @0,1", "fc2": "n/2 @0,1"}
    timeline = simulate(lower(mlp(), make_plan(mlp(), tiles, 2)), toy(1000, 3000))
    reduce = spans(timeline, lambda i: isinstance(i, Reduce) and "fc2.weight" in i.parameters)
    backward = runs(timeline, "fc2", "B")
    assert backward[0][1] < backward[1][1]
    begin = backward[1][1]
    # Two rounds of half of [2 8]: 2 × (10,000 + 32)
    assert reduce == {0: (begin, begin + 20064), 1: (begin, begin + 20064)}
    # The next one queues for the same links.
    bias = spans(timeline, lambda i: isinstance(i, Reduce) and "fc2.bias" in i.parameters)
    assert bias[0][0] == bias[1][0] == begin + 20064


def test_computing_overlaps_communication() -> None:
    graph = pair(lambda a, b: a.relu() + b.tanh().exp().sin())
    timeline = simulate(
        lower(graph, make_plan(graph, {"relu": "@1", "add": "@1"}, 2)), toy(1000, 1000)
    )
    assert message(timeline, "a") == (1000, 11064)
    assert [runs(timeline, op)[0] for op in ("b", "tanh", "exp", "sin")] == [
        (1000, 2000), (2000, 3000), (3000, 4000), (4000, 5000),
    ]  # fmt: skip
    assert runs(timeline, "relu") == {1: (11064, 12064)}


def test_a_device_with_host_overhead_sends_between_its_computations() -> None:
    graph = pair(lambda a, b: a + b)
    program = lower(graph, make_plan(graph, {"add": "@1"}, 2))
    timeline = simulate(program, toy(1000, 1000, host_overhead={"message": 200, "byte": 0.5}))
    # 200 + 64 / 2 at each end of a message
    assert runs(timeline, "a") == {0: (0, 1000)}
    assert runs(timeline, "b") == {0: (1232, 2232)}
    number = next(n for n, i in enumerate(program.instructions) if isinstance(i, Move))
    sent, sending = (
        (int(timeline.start[t]), int(timeline.end[t]))
        for t in np.flatnonzero(timeline.tasks.instruction == number)
    )
    assert sending == (1000, 1232)
    assert sent == (1232, 11296)
    # b is sent at 2464, while a is in flight. "add" is the first to need both, and pays to receive them.
    assert runs(timeline, "add") == {1: (12528, 13528 + 2 * 232)}


def test_an_all_reduce_takes_host_overhead_from_its_members() -> None:
    tiles = {"fc1": "n/2 @0,1", "relu": "n/2 @0,1", "fc2": "n/2 @0,1"}
    program = lower(mlp(), make_plan(mlp(), tiles, 2, bucket=10**9))
    plain, taking = (
        simulate(program, toy(1000, 1000, host_overhead={"sum": ns})) for ns in (0, 5000)
    )
    # Only the updates follow, and they wait for the all-reduce, which takes longer than the overhead.
    assert taking.end.max() == plain.end.max()
    program = lower(mlp(), make_plan(mlp(), tiles, 2, bucket=0))
    plain, taking = (
        simulate(program, toy(1000, 1000, host_overhead={"sum": ns})) for ns in (0, 5000)
    )
    relu = [runs(t, "relu", "B")[0][0] for t in (plain, taking)]
    assert relu[1] == relu[0] + 2 * 5000  # fc2's weight and bias


@pytest.mark.parametrize("sync", ["ps:slice=4", "p3:slice=4"])
def test_host_overhead_of_slices_takes_device_time(sync: str) -> None:
    tiles = {"fc1": "n/2 @0,1", "relu": "n/2 @0,1", "fc2": "n/2 @0,1"}
    program = lower(mlp(), make_plan(mlp(), tiles, 2, sync=sync))
    moves = [i for i in program.instructions if isinstance(i, Move) and i.kind == "push"]
    assert moves
    plain = simulate(program, toy(1000, 1000))
    timeline = simulate(program, toy(1000, 1000, host_overhead={"slice": 700}))
    busy = [(t.compute_seconds * 1e9).round().astype(int) for t in (plain, timeline)]
    ends = np.zeros(2, int)
    for i in program.instructions:
        if isinstance(i, Move) and i.kind in ("push", "pull"):
            for m in i.messages:
                ends[[m.source, m.target]] += 1
    assert (busy[1] - busy[0] == 700 * ends).all()


def test_a_plan_needs_its_devices() -> None:
    program = lower(mlp(), make_plan(mlp(), {}, 3))
    with pytest.raises(InputError, match="the plan needs 3 devices, 'toy' has 2"):
        simulate(program, toy(1000, 1000))


# -- invariants, on random plans ------------------------------------------------------------------

plans = given(
    model=st.sampled_from(MODELS),
    machine=st.sampled_from(["p100:1x4", "p100:2x2", "k80:1x4", "local:4", "host_overhead:4"]),
    seed=st.integers(0, 10_000),
    sync=st.sampled_from(
        [
            "allreduce",
            "server",
            "sharded",
            "sharded:parameters",
            "ps:one",
            "ps:greedy,slice=9",
            "p3:slice=7",
            "p3:collective,slice=7",
        ]
    ),
    steps=st.integers(1, 3),
)


def simulated(model: str, machine: str, seed: int, **more: Any) -> Timeline:
    graph = small(model)[1]
    return simulate(lower(graph, random_plan(graph, 4, seed, **more)), cluster_named(machine))


def engine(
    timeline: Timeline, duration: np.ndarray, latency: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    t = timeline.tasks
    return run_tasks(
        duration,
        latency,
        t.first_resource,
        t.second_resource,
        t.wait_count,
        t.pointer,
        t.successor,
        t.resources,
        t.in_order,
        t.urgency,
    )


@settings(max_examples=15)
@plans
def test_is_deterministic(**plan: Any) -> None:
    a, b = simulated(**plan), simulated(**plan)
    for name in ("start", "end", "cause"):
        assert (getattr(a, name) == getattr(b, name)).all()
    for name in (
        "duration",
        "latency",
        "first_resource",
        "second_resource",
        "wait_count",
        "pointer",
        "successor",
        "nbytes",
    ):
        assert (getattr(a.tasks, name) == getattr(b.tasks, name)).all()


@settings(max_examples=15)
@plans
def test_lasts_as_long_as_its_critical_path_and_any_device(**plan: Any) -> None:
    timeline = simulated(**plan)
    path, total = timeline.critical_path(), int(timeline.end.max())
    assert timeline.start[path[0]] == 0
    assert timeline.end[path[-1]] == total
    # Every task of the path starts when the one before it ends or releases its links: no gaps.
    released = timeline.start + timeline.tasks.duration
    for before, after in itertools.pairwise(path):
        assert timeline.start[after] in (timeline.end[before], released[before])
    nanoseconds = timeline.critical_nanoseconds(path)
    assert nanoseconds.sum() == total
    assert (nanoseconds <= (timeline.end - timeline.start)[path]).all()
    assert (nanoseconds >= timeline.tasks.duration[path]).all()
    for resource in range(timeline.tasks.resources):
        held = (timeline.tasks.first_resource == resource) | (
            timeline.tasks.second_resource == resource
        )
        assert timeline.tasks.duration[held].sum() <= total


@settings(max_examples=15)
@plans
def test_bytes_are_the_programs(**plan: Any) -> None:
    timeline = simulated(**plan)
    want: dict[tuple[int, int], int] = {}
    for i in timeline.program.instructions:
        for m in i.messages if isinstance(i, Move) else ():
            pair_ = (m.source, m.target)
            want[pair_] = want.get(pair_, 0) + message_bytes(timeline.program, i, m)
    assert timeline.bytes_by_pair() == want


@settings(max_examples=15)
@given(factor=st.integers(2, 1000), seed=st.integers(0, 100))
def test_scales_exactly(factor: int, seed: int) -> None:
    timeline = simulated("lenet-tiny", "p100:2x2", seed, steps=2)
    tasks = timeline.tasks
    start, end, cause = engine(timeline, tasks.duration * factor, tasks.latency * factor)
    assert (start == timeline.start * factor).all()
    assert (end == timeline.end * factor).all()
    assert (cause == timeline.cause).all()


class FixedOrder(NamedTuple):
    """A timeline as a graph: what each task waits for, including the task before it on each resource."""

    before: list[list[int]]
    holders: list[list[int]]  # by task: the tasks before it on its resources
    latency: np.ndarray
    order: list[int]  # tasks, each after all that it waits for

    def replay(self, duration: np.ndarray) -> np.ndarray:
        end = np.zeros(len(duration), np.int64)
        for task in self.order:
            ready = max((end[b] for b in self.before[task]), default=0)
            free = max((end[b] - self.latency[b] for b in self.holders[task]), default=0)
            end[task] = max(ready, free) + duration[task] + self.latency[task]
        return end


def fix_order(timeline: Timeline) -> FixedOrder:
    tasks, count = timeline.tasks, len(timeline.start)
    before: list[list[int]] = [[] for _ in range(count)]
    holders: list[list[int]] = [[] for _ in range(count)]
    for task in range(count):
        for other in tasks.successor[tasks.pointer[task] : tasks.pointer[task + 1]]:
            before[other].append(task)
    for resource in range(tasks.resources):
        held = np.flatnonzero(
            (tasks.first_resource == resource) | (tasks.second_resource == resource)
        )
        held = held[np.argsort(timeline.start[held], kind="stable")]
        for a, b in itertools.pairwise(held):
            holders[b].append(int(a))
    # A task has a larger number than all that it waits for. Only tasks without duration start and end
    # together.
    order = sorted(range(count), key=lambda t: (timeline.start[t], timeline.end[t], t))
    return FixedOrder(before, holders, tasks.latency, order)


@settings(max_examples=15)
@plans
def test_a_longer_task_never_ends_the_run_earlier(**plan: Any) -> None:
    """If the order on every resource is fixed. With another order it may (Graham's anomalies)."""
    plan["model"] = "lenet-tiny"
    timeline = simulated(**plan)
    order, duration = fix_order(timeline), timeline.tasks.duration
    assert (order.replay(duration) == timeline.end).all()
    rng = np.random.default_rng(plan["seed"])
    for task in rng.integers(0, len(duration), 5):
        longer = duration.copy()
        longer[task] += rng.integers(1, 100_000)
        assert (order.replay(longer) >= timeline.end).all()


# -- the engine against plain Python --------------------------------------------------------------


@st.composite
def task_graphs(draw: st.DrawFn) -> tuple[list[int], list[list[int]], list[list[int]]]:
    count = draw(st.integers(1, 25))
    duration = draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    held = draw(
        st.lists(
            st.lists(st.integers(0, 3), max_size=2, unique=True), min_size=count, max_size=count
        )
    )
    before = [draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else [] for i in range(count)]
    return duration, held, before


def run_graph(
    duration: list[int], held: list[list[int]], before: list[list[int]], urgency: list[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    count = len(duration)
    after: list[list[int]] = [[] for _ in range(count)]
    for task, others in enumerate(before):
        for other in others:
            after[other].append(task)
    pointer = np.concatenate([[0], np.cumsum([len(a) for a in after])])
    return run_tasks(
        np.array(duration, np.int64),
        np.zeros(count, np.int64),
        np.array([h[0] if h else -1 for h in held], np.int64),
        np.array([h[1] if len(h) > 1 else -1 for h in held], np.int64),
        np.array([len(b) for b in before], np.int64),
        pointer,
        np.array([t for a in after for t in a], np.int32),
        4,
        np.zeros(4, np.bool_),
        np.array(urgency, np.int64),
    )


@settings(max_examples=200)
@given(task_graphs(), st.randoms(use_true_random=False))
def test_the_most_urgent_goes_first(
    graph: tuple[list[int], list[list[int]], list[list[int]]], rng: random.Random
) -> None:
    """No task starts while a more urgent one waits for the same resource only."""
    duration, held, before = [d + 1 for d in graph[0]], graph[1], graph[2]
    count = len(duration)
    urgency = [rng.randint(1, 9) for _ in range(count)]
    start, end, _ = run_graph(duration, held, before, urgency)
    ready = [max((int(end[b]) for b in predecessors), default=0) for predecessors in before]
    for t, u in itertools.permutations(range(count), 2):
        now = start[t]
        waits = ready[u] <= now < start[u] and urgency[u] < urgency[t]
        if waits and set(held[t]) & set(held[u]):
            others = (o for o in range(count) if o != t and set(held[o]) & set(held[u]))
            assert any(start[o] <= now < end[o] for o in others)
    for r in range(4):  # one at a time
        intervals = sorted((int(start[t]), int(end[t])) for t in range(count) if r in held[t])
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(intervals))
