"""On device counts that are no powers of two, OptCNN splits into as many parts as there are devices."""

from __future__ import annotations

from itertools import pairwise

import pytest
from small_models import small

from raddle.clusters import cluster
from raddle.searches.planning import plan_for
from raddle.searches.predict import simulate_steps


@pytest.mark.parametrize("devices", [3, 6])
def test_degrees_are_divisors_of_the_number_of_devices(devices: int) -> None:
    graph, on = small("alexnet-tiny")[1], cluster(f"p100:1x{devices}")
    plan = plan_for(graph, on, "optcnn", batch=graph.batch)
    parts = {len(list(pairwise(cuts))) for tiling in plan.tiles.values() for cuts in tiling.cuts}
    assert devices in parts


def test_on_three_devices_it_is_as_fast_as_one_weird_trick() -> None:
    """Up to half a percent: its costs are added, while those of the simulation overlap."""
    graph, on = small("alexnet-tiny")[1], cluster("p100:1x3")
    plans = [plan_for(graph, on, method, batch=graph.batch) for method in ("optcnn", "owt")]
    optcnn, owt = (simulate_steps(graph, plan, on).step_seconds for plan in plans)
    assert optcnn <= 1.005 * owt
