"""On device counts that are no powers of two, OptCNN splits into as many parts as there are devices."""

from __future__ import annotations

from itertools import pairwise

import pytest
from small_models import small

from raddle.clusters import cluster
from raddle.searches.planning import plan_for
from raddle.searches.predict import simulate_steps


def numbers_of_parts(devices: int, samples: int) -> set[int]:
    """Into how many parts OptCNN's plan for a number of devices splits dimensions."""
    graph, on = small("alexnet-tiny")[1].for_batch(samples), cluster(f"p100:1x{devices}")
    plan = plan_for(graph, on, "optcnn", batch=samples)
    return {len(list(pairwise(cuts))) for tiling in plan.tiles.values() for cuts in tiling.cuts}


@pytest.mark.parametrize("devices", [3, 6])
def test_degrees_are_divisors_of_the_number_of_devices(devices: int) -> None:
    """The devices share the 12 samples evenly."""
    assert numbers_of_parts(devices, samples=12) == {1, devices}


def test_devices_that_would_make_no_part_smaller_are_left_out() -> None:
    """The largest part of 8 samples has 2 of them on 4 devices and on 6, and 4 devices send fewer bytes."""
    assert numbers_of_parts(6, samples=8) == {1, 4}


def test_on_three_devices_it_is_as_fast_as_one_weird_trick() -> None:
    """Up to half a percent: its costs are added, while those of the simulation overlap."""
    graph, on = small("alexnet-tiny")[1], cluster("p100:1x3")
    plans = [plan_for(graph, on, method, batch=graph.batch) for method in ("optcnn", "owt")]
    optcnn, owt = (simulate_steps(graph, plan, on).step_seconds for plan in plans)
    assert optcnn <= 1.005 * owt
