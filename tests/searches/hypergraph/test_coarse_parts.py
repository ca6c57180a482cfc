"""The pieces of the solver of coarse partitions: the record of the best counts, and the annealing runs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from small_models import small

from raddle.searches.hypergraph.coarse import (
    AnnealingRuns,
    CoarseProblem,
    SearchRecord,
    build_coarse_problem,
)
from raddle.searches.hypergraph.counts import volume
from raddle.searches.hypergraph.partitioner import Partitioner
from raddle.searches.stopwatch import Clock


def problem(parts: int = 2) -> CoarseProblem:
    return build_coarse_problem(Partitioner(small("vgg16-tiny")[1]).model, parts, 0.1, 0, None)


def test_a_record_keeps_the_least_that_is_within_the_capacities() -> None:
    coarse_problem, steps = problem(), list[Any]()
    record = SearchRecord(coarse_problem, Clock(10.0), steps.append)
    record.offer("chain", coarse_problem.chain)
    record.offer(
        "all on one part", np.stack([coarse_problem.m.units, 0 * coarse_problem.m.units], axis=1)
    )
    assert (record.start, record.best_volume) == (
        "chain",
        volume(coarse_problem.m, coarse_problem.chain),
    )
    assert [step["step"] for step in steps] == ["chain"]
    assert record.solution().feasible
    assert not record.proven


def test_bounds_rise_to_volumes_that_can_be_and_prove_the_best() -> None:
    record = SearchRecord(problem(), Clock(10.0), lambda step: None)
    record.offer("chain", record.problem.chain)
    record.raise_bound(1.0)
    assert record.bound == record.volume_unit
    record.raise_bound(0.5)
    record.raise_bound(float("inf"))  # means: there is no partition
    assert record.bound == record.volume_unit
    record.raise_bound(record.best_volume)
    assert record.proven
    steps = itertools.count()
    record.run_until(float("inf"), steps)  # stops at once: the best is proven
    assert next(steps) == 0


def test_annealing_finds_the_same_with_the_same_seed_whatever_else_was_found() -> None:
    def least(given: list[np.ndarray]) -> float:
        record = SearchRecord(problem(), Clock(10.0), lambda step: None)
        for x in given:
            record.offer("other", x)
        runs = AnnealingRuns(record.problem, record)
        for _ in itertools.islice(runs.steps([], blocks_deadline=0.0), 4):
            pass
        return runs.best_volume

    assert least([]) == least([problem().chain])
