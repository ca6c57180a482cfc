"""Solves fine partitions by simulated annealing from several starts within a time budget.

A *fine* partition may put the input channels of one filter into different parts; a *coarse* one keeps
filters whole. A *part* is a device's share. The *volume* is the elements that cross parts in a forward. A
part's *overload* is its work above its capacity.

The starts are coarse partitions that the caller gives; `chain`, groups of consecutive layers, each group on
its own parts (fine_chains.py); and `even`, which divides the filters of every layer equally. The best eight
starts get short runs; after each round the worse half is dropped, so that the others get longer runs. The
search works on counts of filters and channels, called rows (fine_rows.py). At the end the counts become a
partition with concrete filters and channels. If a start of the caller is within the capacities, so is the
result, and its exact volume is not larger than that of this start.
"""

# r: round; g: fraction of the capacity; m: the network as arrays (counts.py); pb: the problem; w: walk, the
# state of an annealing run; rows.owned: [layer, part] how many filters the part owns

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raddle.searches.hypergraph.counts import CountModel
from raddle.searches.hypergraph.fine_annealing import anneal
from raddle.searches.hypergraph.fine_chains import chain_rows
from raddle.searches.hypergraph.fine_partition import (
    FinePartition,
    fine_volume,
    fine_work,
    to_cells,
)
from raddle.searches.hypergraph.fine_rows import FineRows, assign_indices, rows_of_counts
from raddle.searches.hypergraph.fine_walk import (
    BEST_VOLUME,
    OVERLOAD,
    VOLUME,
    FineProblem,
    build_fine_problem,
    start_walk,
)
from raddle.searches.hypergraph.network import LayerNetwork
from raddle.searches.settings import OnProgress
from raddle.searches.stopwatch import Clock

__all__ = ["FinePartition", "FineSolution", "fine_volume", "fine_work", "solve", "to_cells"]

Array = np.ndarray

# Chain starts fill this fraction of the capacity: they are cut at whole units and may exceed it.
CAPACITY_MARGINS = (1.0, 0.99, 0.98, 0.97, 0.95, 0.92)
ROUNDS = 4  # after each, half of the candidates are dropped
CHUNK = 1 << 14  # moves between two looks at the clock
HOT = 0.02  # first temperature, as a fraction of the average volume of a part
COLD = 0.0002  # last temperature, likewise
# The price of overload: an overload as large as the capacity of one part counts as this many times the
# average volume of a part. It rises during an annealing run.
PRICE = 3.0


class FineSolution(NamedTuple):
    """The best partition found."""

    partition: FinePartition
    volume: int  # elements that cross parts in a forward
    seconds: float  # that the search took
    feasible: bool  # whether no part exceeds its capacity
    start: str  # name of the start that led to it


class _Candidate(NamedTuple):
    """A partition as counts, and the start that led to it."""

    start: str
    rows: FineRows
    overload: float  # work above the capacities, each as a fraction of the capacity, added up
    volume: float  # elements


def solve(
    network: LayerNetwork,
    m: CountModel,
    parts: int,
    *,
    epsilon: float = 0.1,
    budget: float = 10.0,
    seed: int = 0,
    starts: Sequence[Array] = (),
    shares: Sequence[float] | None = None,
    iterations: int | None = None,
    clock: Clock | None = None,
    on_progress: OnProgress = lambda step: None,
) -> FineSolution:
    """Returns the partition of least volume found in `budget` seconds; JIT compilation is not counted.

    starts: counts [layer, part] of coarse partitions; shares: of the work, by part; iterations: number of
    moves instead of a time limit, so that the result can be repeated. clock: the clock of a larger search,
    which then gives the budget; None: it begins after the first move, which compiles the functions.
    """
    pb = build_fine_problem(network, m)
    share = np.full(parts, 1 / parts) if shares is None else np.asarray(shares) / sum(shares)
    capacity = m.total_work * share * (1 + epsilon)
    _warm_up(pb, rows_of_counts(network, _even_counts(m, parts)), capacity)
    clock = clock or Clock(budget)
    started_at, budget = clock.seconds, clock.seconds_left
    given_starts = [(f"coarse {i}", rows_of_counts(network, x)) for i, x in enumerate(starts)]
    chain_starts = [
        (f"chain {g}", chain_rows(network, pb, parts, capacity.mean() * g))
        for g in CAPACITY_MARGINS
    ]
    even_start = [("even", rows_of_counts(network, _even_counts(m, parts)))]
    given_candidates = [_candidate(pb, name, rows, capacity) for name, rows in given_starts]
    pool = _distinct(
        [
            _candidate(pb, name, rows, capacity)
            for name, rows in chain_starts + even_start
            if rows is not None
        ]
    )
    # So many that one is left after ROUNDS - 1 halvings
    pool = sorted([*given_candidates, *pool], key=_penalized_volume)[: 1 << ROUNDS - 1]
    # The last tenth of the budget is for _to_solution.
    deadlines = [started_at + budget * 0.9 * (r + 1) / ROUNDS for r in range(ROUNDS)]
    for r, deadline in enumerate(deadlines):
        pool = sorted(pool, key=_penalized_volume if r < 2 else _feasible_first)
        pool = pool[: max(1, len(pool) >> (r > 0))]  # the better half, from the second round on
        for i, candidate in enumerate(pool):
            seconds = (deadline - clock.seconds) / (len(pool) - i)
            moves = None if iterations is None else iterations // (ROUNDS * len(pool))
            pool[i] = _anneal_candidate(pb, candidate, capacity, clock, seconds, moves, seed + r)
            message = f"from {candidate.start}, {int(pool[i].volume)} elements"
            on_progress({"step": message, "done": r * len(pool) + i, "of": ROUNDS * len(pool)})
    solutions: list[tuple[float, FineSolution]] = []  # with their overload
    for candidate in [*sorted(pool, key=_feasible_first)[:2], *given_candidates]:
        if solutions and clock.expired and iterations is None:
            break
        solutions.append(_to_solution(network, m, candidate, capacity, seed))
    _, best = min(solutions, key=lambda scored: (scored[0], scored[1].volume))
    return best._replace(seconds=clock.seconds - started_at)


def _warm_up(pb: FineProblem, rows: FineRows, capacity: Array) -> None:
    """Runs one move, so that JIT compilation does not count as search time."""
    # One move; temperatures and price do not matter.
    anneal(pb, start_walk(pb, rows, capacity, 0), capacity, 1, 1.0, 1.0, 1.0)


def _even_counts(m: CountModel, parts: int) -> Array:
    """Returns counts that divide the units of every layer equally."""
    share = m.units[:, None] * np.arange(parts + 1) // parts
    return np.diff(share, axis=1)


def _candidate(pb: FineProblem, start: str, rows: FineRows, capacity: Array) -> _Candidate:
    """Returns a start with its overload and volume."""
    totals = start_walk(pb, rows, capacity, 0).totals
    return _Candidate(start, rows, totals[OVERLOAD], totals[VOLUME])


def _distinct(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Returns the candidates without those that have the same overload and volume as another."""
    return list(
        {(candidate.overload, candidate.volume): candidate for candidate in candidates}.values()
    )


def _penalized_volume(candidate: _Candidate) -> float:
    """Returns the volume, increased for overload: annealing can often repair a little overload."""
    parts = candidate.rows.owned.shape[1]
    return float(candidate.volume * (1 + PRICE * candidate.overload / parts))


def _feasible_first(candidate: _Candidate) -> tuple[bool, float]:
    """Returns a sort key: candidates within the capacities first, then by volume."""
    return candidate.overload > 0, candidate.volume


def _anneal_candidate(
    pb: FineProblem,
    candidate: _Candidate,
    capacity: Array,
    clock: Clock,
    seconds: float,
    moves: int | None,
    seed: int,
) -> _Candidate:
    """Returns the candidate after one annealing run of `seconds`, or of `moves` if given."""
    w = start_walk(pb, candidate.rows, capacity, seed)
    part_volume = candidate.volume / candidate.rows.owned.shape[1] + 1e-9  # elements, average
    # progress: the fraction of the run that is done; it determines the temperature
    started_at, moves_done, chunk, progress = clock.seconds, 0, CHUNK // 8, 0.0
    while progress < 1:
        if moves is None:
            seconds_per_move = (clock.seconds - started_at) / moves_done if moves_done else 0.0
            next_progress = progress + seconds_per_move * chunk / max(seconds, 1e-9)
        else:
            chunk = max(1, min(CHUNK, moves - moves_done))
            next_progress = (moves_done + chunk) / max(1, moves)
        hot, cold = (
            part_volume * HOT * (COLD / HOT) ** min(1.0, fraction)
            for fraction in (progress, next_progress)
        )
        # The price of overload rises during the run, so that it ends within the capacities.
        anneal(pb, w, capacity, chunk, hot, cold, part_volume * PRICE * (1 + 30 * progress))
        moves_done, chunk = moves_done + chunk, CHUNK
        progress = (
            next_progress
            if moves is not None
            else (clock.seconds - started_at) / max(seconds, 1e-9)
        )
    return _Candidate(candidate.start, w.best, w.totals[OVERLOAD], w.totals[BEST_VOLUME])


def _to_solution(
    network: LayerNetwork, m: CountModel, candidate: _Candidate, capacity: Array, seed: int
) -> tuple[float, FineSolution]:
    """Returns a candidate as a partition with concrete indices, and its overload."""
    partition = assign_indices(network, candidate.rows, seed)
    work = fine_work(network, partition, (m.work * m.units).tolist())
    overload = float(np.maximum(0, work / capacity - 1 - 1e-9).sum())
    volume = fine_volume(network, partition)
    return overload, FineSolution(partition, volume, 0.0, overload == 0, candidate.start)
