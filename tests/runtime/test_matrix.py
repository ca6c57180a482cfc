"""Every model of the zoo, with every baseline on 2, 3 and 4 ranks, trains as the plain module does.

Ranks are threads. Models train two steps (large ones one step) in float64 with global batch statistics.
Losses, gradients, parameters, buffers and the bytes between each pair of ranks are compared: at the
transport, in the program and in the simulation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from equality import TINY, tiny

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.plans.plan import Plan
from raddle.searches.baselines import BASELINES
from raddle.searches.planning import plan_for

RANKS = (2, 3, 4)
LARGE = ("inception_v3-tiny", "resnet101-tiny", "resnet1001-tiny")
SKIPPED: dict[tuple[str, str, int], str] = {}  # (model, method, ranks): why it cannot be planned


def planned(model: str, method: str, ranks: int) -> Plan | None:
    """The plan; None if the method has none and SKIPPED says why."""
    key = model, method, ranks
    try:
        plan = plan_for(tiny(model).graph, cluster(f"local:{ranks}"), method, bn="global")
    except InputError as error:
        if key not in SKIPPED or SKIPPED[key] not in str(error):
            raise
        return None
    assert key not in SKIPPED, f"{key} can be planned: take it off the list"
    return replace(plan, steps=1 if model in LARGE else 2)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("model", TINY)
def test_trains_as_the_plain_module_does(model: str, ranks: int, record_property: Any) -> None:
    done: list[Plan] = []
    same = skipped = 0
    for method in BASELINES:
        plan = planned(model, method, ranks)
        if plan is None:
            skipped += 1
            continue
        if any(plan.tiles == other.tiles for other in done):
            same += 1  # some methods give the same plan, as `owt` and `model` without convolutions
            continue
        try:
            tiny(model).verify(plan)
        except Exception as error:
            raise AssertionError(f"{method} on {ranks} ranks: {error}") from error
        done.append(plan)
    record_property("plans on threads: run", len(done))
    record_property("plans on threads: the same as another", same)
    record_property("plans on threads: skipped", skipped)


def test_the_matrix_is_whole() -> None:
    run = len(TINY) * len(BASELINES) * len(RANKS) - len(SKIPPED)
    assert (run, len(SKIPPED)) == (360, 0)
