"""The best coarse partition that a budget of time finds, and how far from the best it can be at most.

Quick starts and Mt-KaHyPar's partition of blocks are annealed, again and again and longer each time, in an
order that depends on the seed only: more time continues what less time has done. For few parts an exact
program proves what the annealing found; a lower bound says what no partition can be below.
"""

# l: layer; p: part

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from raddle.searches.hypergraph import coarse_annealing, exact
from raddle.searches.hypergraph.coarse_starts import balanced, chain, layerwise
from raddle.searches.hypergraph.counts import Array, CountModel, volume
from raddle.searches.hypergraph.kahypar_blocks import partition_blocks
from raddle.searches.hypergraph.lower_bound import volume_bounds as lower_bounds
from raddle.searches.settings import OnProgress

FIRST_ROUND_MOVES = 1 << 17  # moves of a run of the first round
EXACT_LIMIT = 256  # layers x parts, of at most 4 parts
HOT, WARM, MILD = 0.1, 0.03, 0.01  # temperatures, in what a part receives on average
COLD = 0.001
SLACK = 1e-9  # of a capacity, for rounding


class CoarseSolution(NamedTuple):
    """Counts, and what is known of them."""

    x: Array  # [layer, part]
    volume: int  # elements
    lower_bound: float  # of all partitions within the capacities
    proven: bool  # no partition has less volume
    seconds: float
    start: str  # what it was found from
    feasible: bool  # within the capacities


def solve(
    m: CountModel,
    parts: int,
    *,
    epsilon: float = 0.1,
    budget: float = 10.0,
    seed: int = 0,
    shares: Sequence[float] | None = None,
    starts: Sequence[Array] = (),
    on_progress: OnProgress = lambda step: None,
) -> CoarseSolution:
    """The counts of least volume that are found in `budget` seconds, after kernels are compiled.

    A part may have (1 + epsilon) x its share of all work. Given starts are counts [layer, part].
    """
    if parts == 1:
        return CoarseSolution(m.units[:, None].copy(), 0, 0.0, True, 0.0, "whole", True)
    given = [np.asarray(x, np.int64) for x in starts]
    problem = build_coarse_problem(m, parts, epsilon, seed, shares)
    _jit_compile(problem)
    record = SearchRecord(problem, on_progress)
    started_at = record.started_at
    for name, x in (("balanced", problem.balanced), ("chain", problem.chain)):
        record.offer(name, x)
    for x in given:
        record.offer("given", x)
    rounds = AnnealingRuns(problem, record).steps(given, started_at + 0.5 * budget)
    # a first round, a look whether that was the best already, and what time is left
    record.run_until(started_at + 0.5 * budget, rounds, lambda round_number: round_number > 0)
    bounds = _bound_steps(record)
    record.run_until(perf_counter() + 0.12 * budget, bounds)
    if parts <= 4 and parts * m.num_layers <= EXACT_LIMIT and not record.proven:
        _run_exact(record, min(0.4 * budget, started_at + budget - perf_counter()))
    record.run_until(started_at + 0.87 * budget, rounds)
    record.run_until(started_at + budget, bounds)
    record.run_until(started_at + budget, rounds)
    return record.solution()


def capacities(m: CountModel, parts: int, epsilon: float, shares: Sequence[float] | None) -> Array:
    """The most work of every part."""
    part_shares = np.ones(parts) if shares is None else np.asarray(shares, np.float64)
    capacity: Array = (1 + epsilon) * m.total_work * part_shares / part_shares.sum()
    return capacity


class CoarseProblem(NamedTuple):
    """What is to be partitioned, and where every search of it starts."""

    m: CountModel
    parts: int
    epsilon: float
    seed: int
    shares: Sequence[float] | None
    capacity: Array  # by part
    chain: Array
    balanced: Array

    def is_feasible(self, x: Array) -> bool:
        """Whether counts are within the capacities."""
        return bool((self.m.work @ x <= self.capacity).all())


def build_coarse_problem(
    m: CountModel, parts: int, epsilon: float, seed: int, shares: Sequence[float] | None
) -> CoarseProblem:
    capacity = capacities(m, parts, epsilon, shares) * (1 + SLACK)
    starts = chain(m, capacity), balanced(m, capacity)
    return CoarseProblem(m, parts, epsilon, seed, shares, capacity, *starts)


class SearchRecord:
    """The best counts that were found by anything, and the highest bound."""

    def __init__(self, problem: CoarseProblem, on_progress: OnProgress) -> None:
        self.problem, self.on_progress = problem, on_progress
        self.best, self.best_volume, self.start = problem.balanced, math.inf, "balanced"
        self.columns: dict[bytes, Array] = {}  # of partitions within the capacities
        self.bound = 0.0
        self.volume_unit = int(np.gcd.reduce(problem.m.cost)) if len(problem.m.cost) else 1
        self.started_at = perf_counter()

    @property
    def proven(self) -> bool:
        return self.bound >= self.best_volume

    def offer(self, name: str, x: Array) -> None:
        if not self.problem.is_feasible(x):
            return
        for p in range(self.problem.parts):
            self.columns.setdefault(x[:, p].tobytes(), x[:, p].copy())
        new_volume = volume(self.problem.m, x)
        if new_volume < self.best_volume:
            self.best, self.best_volume, self.start = x.copy(), new_volume, name
            seconds = perf_counter() - self.started_at
            metrics = {"volume": self.best_volume, "lower_bound": self.bound, "seconds": seconds}
            self.on_progress({"step": name, **metrics})

    def raise_bound(self, bound: float) -> None:
        """No partition is below; rounded up to a volume that can be."""
        if math.isfinite(bound):  # or there is no partition
            self.bound = max(
                self.bound, self.volume_unit * math.ceil(bound / self.volume_unit - 1e-6)
            )

    def run_until(
        self,
        deadline: float,
        steps: Iterator[Any],
        ended: Callable[[Any], bool] = lambda step: False,
    ) -> None:
        """Step by step, as long as there is something to find."""
        while perf_counter() < deadline and not self.proven:
            step = next(steps, None)
            if step is None or ended(step):
                return

    def solution(self) -> CoarseSolution:
        return CoarseSolution(
            self.best,
            volume(self.problem.m, self.best),
            self.bound,
            self.proven,
            perf_counter() - self.started_at,
            self.start,
            self.problem.is_feasible(self.best),
        )


class AnnealingRuns:
    """Runs of annealing; they have a best of their own, so that nothing else disturbs their order."""

    def __init__(self, problem: CoarseProblem, record: SearchRecord) -> None:
        self.problem, self.record = problem, record
        self.neighbours = coarse_annealing.build_neighbours(problem.m)
        self.part_volume = (volume(problem.m, problem.chain) + 1) / problem.parts
        self.best, self.best_volume = problem.chain, math.inf

    def steps(self, given: Sequence[Array], blocks_deadline: float) -> Iterator[int]:
        """The round, after every chunk of the runs in their order."""
        m, capacity = self.problem.m, self.problem.capacity
        for run_number, (round_number, name, x, hot) in enumerate(
            self._runs(given, blocks_deadline)
        ):
            walk = coarse_annealing.start_walk(
                m, x, capacity, self.problem.seed * 1_000_003 + run_number
            )
            temperatures = hot * self.part_volume, COLD * self.part_volume
            yield round_number
            for _ in coarse_annealing.anneal(
                m, self.neighbours, capacity, walk, FIRST_ROUND_MOVES << round_number, *temperatures
            ):
                best_volume = float(walk.totals[coarse_annealing.BEST_VOLUME])
                if best_volume < self.best_volume:
                    self.best, self.best_volume = walk.best.T.copy(), best_volume
                    self.record.offer(name, self.best)
                yield round_number
            if math.isfinite(walk.totals[coarse_annealing.BEST_VOLUME]):
                self.record.offer(name, walk.best.T)

    def _runs(
        self, given: Sequence[Array], blocks_deadline: float
    ) -> Iterator[tuple[int, str, Array, float]]:
        """Round, name, start and temperature of all runs, without end."""
        problem, warm_starts = self.problem, [("given", x) for x in given]
        m, parts, epsilon, seed, shares, *_ = problem
        yield from ((0, *named_start, WARM) for named_start in warm_starts)
        yield 0, "chain", problem.chain, HOT
        yield 0, "balanced", problem.balanced, HOT
        yield 0, "layerwise", layerwise(m, problem.capacity), HOT
        for blocks in (16, 32):
            if perf_counter() + _expected_seconds(m, parts, blocks) < blocks_deadline:
                x = partition_blocks(m, parts, epsilon, blocks, seed, shares=shares)
                warm_starts.append((f"Mt-KaHyPar on {blocks} blocks", x))
                self.record.offer(*warm_starts[-1])
                yield 0, *warm_starts[-1], WARM
        if parts % 2 == 0:
            yield 0, "halves", self._cut_halves(), WARM
        for round_number in itertools.count(1):
            yield round_number, "chain", problem.chain, HOT
            yield round_number, "annealing", self.best, WARM
            yield from ((round_number, *warm_start, WARM) for warm_start in warm_starts)
            yield round_number, "annealing", self.best, MILD

    def _cut_halves(self) -> Array:
        """A short search for half as many parts, whose parts are cut in two."""
        m, pairs = self.problem.m, self.problem.capacity.reshape(-1, 2)
        capacity = pairs.sum(axis=1)
        x = chain(m, capacity)
        walk = coarse_annealing.start_walk(m, x, capacity, self.problem.seed)
        part_volume = (volume(m, x) + 1) / len(pairs)
        if len(pairs) > 1:
            temperatures = HOT * part_volume, COLD * part_volume
            for _ in coarse_annealing.anneal(
                m, self.neighbours, capacity, walk, FIRST_ROUND_MOVES, *temperatures
            ):
                pass
        cut = [chain(m._replace(units=counts), pairs[p]) for p, counts in enumerate(walk.best)]
        return np.concatenate(cut, axis=1)


def _jit_compile(problem: CoarseProblem) -> None:
    """A step of everything, so that no clock counts the compiler."""
    walk = coarse_annealing.start_walk(problem.m, problem.chain, problem.capacity, 0)
    next(
        coarse_annealing.anneal(
            problem.m,
            coarse_annealing.build_neighbours(problem.m),
            problem.capacity,
            walk,
            1,
            1.0,
            1.0,
        )
    )
    next(lower_bounds(problem.m, problem.capacity, ()))


def _bound_steps(record: SearchRecord) -> Iterator[float]:
    problem = record.problem
    for bound in lower_bounds(
        problem.m, problem.capacity, record.columns.values(), record.best_volume
    ):
        record.raise_bound(bound)
        yield bound


def _run_exact(record: SearchRecord, seconds: float) -> None:
    """The exact program, which may find something better, too."""
    problem, start = record.problem, record.best if math.isfinite(record.best_volume) else None
    result = exact.solve(problem.m, problem.capacity, seconds=seconds, start=start)
    if result.x is not None:
        record.offer("exact", result.x)
    record.raise_bound(result.lower_bound)


def _expected_seconds(m: CountModel, parts: int, blocks: int) -> float:
    """About how many seconds Mt-KaHyPar takes, generously."""
    pins = float((np.diff(m.dense_start) * np.diff(m.piece_start)).sum()) * blocks * blocks
    return 0.2 + 4e-6 * pins * math.sqrt(parts)
