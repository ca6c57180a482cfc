"""Slices are all-reduced in the order of a simulation with priorities, and every later run keeps it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from random_plans import random_plan
from small_models import make_plan, mlp, small

from raddle.clusters import Cluster, Device, Link, cluster
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.program.program import Reduce, Run
from raddle.searches.planning import plan_for
from raddle.searches.predict import simulate_steps
from raddle.searches.slice_order import with_slice_order
from raddle.simulation.timeline import Timeline, simulate


def toy(nanoseconds: float) -> Cluster:
    """A cluster on which an operator takes 1000 ns, and a message 1 ns plus `nanoseconds` per byte."""
    devices = [Device(f"toy{i}", 0, {"float32": 1e30}, 10**9, 1e30, overhead=1e-6) for i in (0, 1)]
    return Cluster("toy", tuple(devices), (Link(1e9 / nanoseconds, 1e-9),), (None,))


def plan(**more: Any) -> Plan:
    """Data parallel. Slices 0 to 3 are fc1's weight, 4 its bias, 5 and 6 fc2's weight, 7 its bias."""
    tiles = dict.fromkeys(("fc1", "relu", "fc2", "sum"), "n/2 @0,1")
    return make_plan(mlp(), tiles, 2, sync="p3:collective,slice=8,unbundled", **more)


def slices_by_start(timeline: Timeline) -> list[int]:
    """The slices of the last step in the order in which their all-reduces start."""
    program, starts = timeline.program, []
    number = {(b.parameters, b.slices): n for n, b in enumerate(program.bundles)}
    uses_link = timeline.tasks.first_resource >= 0
    for at, i in enumerate(program.instructions):
        if isinstance(i, Reduce) and i.key.step == program.plan.steps - 1:
            start_times = timeline.start[(timeline.tasks.instruction == at) & uses_link]
            starts.append((int(start_times.min()), at, number[i.parameters, i.regions[0]]))
    return [n for *_, n in sorted(starts)]


@pytest.mark.parametrize(
    ("nanoseconds", "order"),
    [
        (1.0, (5, 6, 7, 0, 1, 2, 3, 4)),  # fast network: in the order of the backward
        (60.0, (5, 6, 0, 1, 2, 3, 4, 7)),  # fc2's weight is sent before fc1's gradients are ready
        (300.0, (5, 0, 1, 2, 3, 4, 6, 7)),  # slow: all of fc1 overtakes the other slices of fc2
    ],
)
def test_what_the_forward_uses_first_passes(nanoseconds: float, order: tuple[int, ...]) -> None:
    on = toy(nanoseconds)
    ordered = with_slice_order(mlp(), plan(), on)
    assert ordered.order == order
    timeline = simulate(lower(mlp(), replace(ordered, steps=2)), on)
    assert slices_by_start(timeline) == list(order)  # nothing overtakes


def test_a_forward_begins_before_the_last_sum_has_ended() -> None:
    """With the order, fc1's next forward runs while slices of fc2 are still being reduced; it is faster."""
    on = toy(300.0)
    ends = {}
    for name, chosen in (("order", with_slice_order(mlp(), plan(), on)), ("none", plan())):
        timeline = simulate(lower(mlp(), replace(chosen, steps=3)), on)
        tasks, instructions = timeline.tasks, timeline.program.instructions
        sums = [n for n, i in enumerate(instructions) if isinstance(i, Reduce) and i.key.step == 0]
        last = int(timeline.end[np.isin(tasks.instruction, sums)].max())
        forward = next(
            n for n, i in enumerate(instructions)
            if isinstance(i, Run) and (i.op, i.phase, i.key.step) == ("fc1", "F", 1)
        )  # fmt: skip
        starts = int(timeline.start[tasks.instruction == forward].min())
        assert (starts < last) == (name == "order")
        ends[name] = timeline.step_seconds
    assert ends["order"] < ends["none"]


@pytest.mark.parametrize("seed", range(6))
def test_any_plan_can_be_ordered(seed: int) -> None:
    graph = small("lenet-tiny")[1]
    chosen = random_plan(graph, 3, seed, sync="p3:collective,slice=9")
    on = cluster("p100:1x4")
    ordered = with_slice_order(graph, chosen, on)
    count = len(lower(graph, ordered).bundles)
    assert sorted(ordered.order) == list(range(count))
    assert ordered == with_slice_order(graph, ordered, on)  # whatever order it had before


def test_planning_orders_by_itself() -> None:
    torch.manual_seed(0)
    on = cluster("p100:1x2")
    made = plan_for(mlp(), on, "data", sync="p3:collective,slice=8")
    bundles = lower(mlp(), made).bundles
    assert len(bundles) < 8  # slices
    assert sorted(made.order) == list(range(len(bundles)))
    assert simulate_steps(mlp(), made, on).step_seconds > 0
    assert plan_for(mlp(), on, "data", sync="p3").order == ()
