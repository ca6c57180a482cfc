"""Links in simulated programs: latency does not occupy them, and they are never idle without a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import cluster_named, random_plan, sync_texts
from small_models import make_plan, small
from torch import Tensor, nn

from raddle.clusters import Cluster, Device, Link
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.program.lower import lower
from raddle.program.program import Move
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.timeline import Timeline, simulate

Array = np.ndarray
OPS = ("relu", "tanh", "exp", "sin")


class Fan(nn.Module):
    """One value that four operators read."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        return a.relu() + a.tanh() + a.exp() + a.sin()


def fan(samples: int) -> Graph:
    return capture(Fan(), (torch.zeros(samples, 4),), supervised(lambda y: y.sum(), targets=0))


def ports(bandwidth: float, latency: float) -> Cluster:
    devices = tuple(
        Device("toy", 0, {"float32": 1e12}, 10**9, 1e12, overhead=1e-6) for _ in range(5)
    )
    return Cluster("toy", devices, (Link(bandwidth, latency, True, False),), (None,))


@settings(max_examples=20, deadline=None)
@given(
    readers=st.integers(1, 4),
    samples=st.integers(1, 6),
    bandwidth=st.floats(1e6, 1e10),
    latency=st.floats(0, 1e-3),
)
def test_equal_messages_of_one_device_share_one_latency(
    readers: int, samples: int, bandwidth: float, latency: float
) -> None:
    graph, on = fan(samples), ports(bandwidth, latency)
    plan = make_plan(graph, {op: f"@{1 + i}" for i, op in enumerate(OPS[:readers])}, 5)
    timeline = simulate(lower(graph, plan), on)
    number = next(
        n for n, i in enumerate(timeline.program.instructions)
        if isinstance(i, Move) and i.value == "a" and i.kind == "activation"
    )  # fmt: skip
    messages = (timeline.tasks.instruction == number) & (timeline.tasks.first_resource >= 0)
    assert messages.sum() == readers
    begin = timeline.start[messages].min()
    on_link = max(1, round(1e9 * (samples * 8 * 4) / bandwidth))
    arrivals = np.sort(timeline.end[messages]) - begin
    assert arrivals.tolist() == [round(1e9 * latency) + on_link * (k + 1) for k in range(readers)]
    assert Evaluator(graph, on, plan).time() == timeline.end.max()


def busy_intervals(timeline: Timeline, resource: int) -> Array:
    """The intervals in which a resource is busy, as (begin, end), sorted."""
    tasks = timeline.tasks
    held = (tasks.first_resource == resource) | (tasks.second_resource == resource)
    begin = timeline.start[held]
    order = np.argsort(begin, kind="stable")
    return np.stack([begin, begin + tasks.duration[held]], axis=1)[order]


def idle_while_waiting(timeline: Timeline) -> list[int]:
    """The tasks that waited at a time when all of their resources were idle."""
    tasks = timeline.tasks
    intervals = [busy_intervals(timeline, r) for r in range(tasks.resources)]
    idle = []
    for task in np.flatnonzero(timeline.start > timeline.ready):
        now, start = int(timeline.ready[task]), int(timeline.start[task])
        held = [r for r in (tasks.first_resource[task], tasks.second_resource[task]) if r >= 0]
        while now < start:  # goes on to the end of an interval that contains `now`
            ends = [now]
            for r in held:
                k = int(np.searchsorted(intervals[r][:, 0], now, side="right")) - 1
                if k >= 0:
                    ends.append(int(intervals[r][k, 1]))
            if max(ends) == now:
                idle.append(int(task))
                break
            now = max(ends)
    return idle


@settings(max_examples=25, deadline=None)
@given(
    model=st.sampled_from(["lenet-tiny", "gpt-tiny", "unet-tiny", "nmt-tiny"]),
    machine=st.sampled_from(["p100:1x4", "p100:2x2", "k80:1x4", "local:4", "host_overhead:4"]),
    seed=st.integers(0, 2**30),
    sync=sync_texts(4),
)
def test_no_resource_is_idle_while_a_ready_task_needs_only_idle_ones(
    model: str, machine: str, seed: int, sync: str
) -> None:
    graph = small(model)[1]
    plan = random_plan(graph, 4, seed, sync=sync)
    timeline = simulate(lower(graph, plan), cluster_named(machine))
    assert not idle_while_waiting(timeline)


@pytest.mark.parametrize("sync", ["allreduce", "server", "p3:slice=7"])
def test_devices_in_order_need_no_queue(sync: str) -> None:
    from raddle.simulation.engine import run_tasks

    graph = small("lenet-tiny")[1]
    timeline = simulate(
        lower(graph, random_plan(graph, 4, 1, sync=sync)), cluster_named("p100:2x2")
    )
    t = timeline.tasks
    assert t.in_order[:4].any() == (sync != "p3:slice=7")
    results: tuple[Any, ...] = run_tasks(
        t.duration, t.latency, t.first_resource, t.second_resource, t.wait_count, t.pointer,
        t.successor, t.resources, np.zeros(t.resources, np.bool_), t.urgency,
    )  # fmt: skip
    for queued, unqueued in zip(
        results, (timeline.start, timeline.end, timeline.cause), strict=True
    ):
        assert (queued == unqueued).all()
