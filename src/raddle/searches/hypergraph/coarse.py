"""Solves coarse partitions: finds the least volume within a time budget, and a lower bound.

In a *coarse* partition every filter is whole in one part; a *part* is a device's share. The *volume* is the
elements that cross parts in a forward. Simulated annealing runs from several starts, in rounds that double
in length. The seed decides what the runs do, so a longer budget continues what a shorter one does (but
Mt-KaHyPar is skipped if the budget is too short for it). For up to 4 parts a mixed-integer program
(exact.py) may prove that the result is the best. A lower bound on the volume (lower_bound.py) says how far
the result is from the best at most. A partition is a matrix of counts x[layer, part]: how many units
(filters) of the layer the part has (counts.py).

The starts (coarse_starts.py, _runs below):

    chain       the layers in order fill one part after the other
    balanced    heavy units first, each into the part that is filled least
    layerwise   layers stay whole
    given       counts from the caller
    Mt-KaHyPar  the result of this hypergraph partitioner on blocks of filters (kahypar_blocks.py)
    halves      a search for half as many parts, each of which is then cut in two

A *map* is a feature map: a value that layers read. It consists of *pieces*: the units of one layer, then
those of the next. A *dense* reader of a map is a layer: a part that has units of it needs all units of the
map (network.py).
"""

# p: part; m: the network as arrays (counts.py); m.work: of one unit, by layer; m.cost: elements of one
# unit, by map; x: counts [layer, part]; walk: the state of an annealing run, with arrays [part, layer];
# walk.totals[BEST_VOLUME]: the volume of the counts walk.best

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from raddle.searches.hypergraph import coarse_annealing, exact
from raddle.searches.hypergraph.coarse_starts import balanced, chain, layerwise
from raddle.searches.hypergraph.counts import Array, CountModel, volume
from raddle.searches.hypergraph.kahypar_blocks import partition_blocks
from raddle.searches.hypergraph.lower_bound import volume_bounds as lower_bounds
from raddle.searches.settings import OnProgress
from raddle.searches.stopwatch import Clock

FIRST_ROUND_MOVES = 1 << 17  # of one run of annealing
EXACT_LIMIT = 256  # layers x parts, up to which the exact program is tried
# Temperatures, as fractions of what a part receives on average
HOT, WARM, MILD = 0.1, 0.03, 0.01  # the first of a run
COLD = 0.001  # the last of a run
SLACK = 1e-9  # fraction by which rounding may exceed a capacity


class CoarseSolution(NamedTuple):
    """The best counts of filters, and how good they are."""

    x: Array  # [layer, part]
    volume: int  # elements
    lower_bound: float  # on the volume of all partitions within the capacities
    proven: bool  # no partition has less volume
    seconds: float  # that the search took
    start: str  # name of the start that led to it
    feasible: bool  # whether it is within the capacities


def solve(
    m: CountModel,
    parts: int,
    *,
    epsilon: float = 0.1,
    budget: float = 10.0,
    seed: int = 0,
    shares: Sequence[float] | None = None,
    starts: Sequence[Array] = (),
    clock: Clock | None = None,
    on_progress: OnProgress = lambda step: None,
) -> CoarseSolution:
    """Returns the counts of least volume found in `budget` seconds; JIT compilation is not counted.

    clock: the clock of a larger search, which then gives the budget; None: it begins now.
    A part may have (1 + epsilon) x its share of all work. shares: of the work, by part; None: equal.
    starts: counts [layer, part] to begin with.
    """
    if parts == 1:  # all units are in it: volume and bound are 0, which is proven and feasible
        return CoarseSolution(m.units[:, None].copy(), 0, 0.0, True, 0.0, "whole", True)
    given = [np.asarray(x, np.int64) for x in starts]
    problem = build_coarse_problem(m, parts, epsilon, seed, shares)
    _warm_up(problem)
    clock = clock or Clock(budget)
    record = SearchRecord(problem, clock, on_progress)
    # started_at, until: in seconds of the clock
    started_at, budget = clock.seconds, clock.seconds_left
    until = clock.budget
    for name, x in (("balanced", problem.balanced), ("chain", problem.chain)):
        record.offer(name, x)
    for x in given:
        record.offer("given", x)
    rounds = AnnealingRuns(problem, record).steps(given, started_at + 0.5 * budget)
    # `rounds` and `bounds` are iterators that stop and continue here: the first round of annealing; then a
    # lower bound and the exact program, which may prove that the result is the best already; then further
    # rounds.
    record.run_until(started_at + 0.5 * budget, rounds, lambda round_number: round_number > 0)
    bounds = _bound_steps(record)
    record.run_until(clock.seconds + 0.12 * budget, bounds)
    if parts <= 4 and parts * m.num_layers <= EXACT_LIMIT and not (record.proven or clock.expired):
        _run_exact(record, min(0.4 * budget, clock.seconds_left))
    record.run_until(started_at + 0.87 * budget, rounds)
    record.run_until(until, bounds)
    record.run_until(until, rounds)
    return record.solution()


def capacities(m: CountModel, parts: int, epsilon: float, shares: Sequence[float] | None) -> Array:
    """Returns the most work that each part may have."""
    part_shares = np.ones(parts) if shares is None else np.asarray(shares, np.float64)
    capacity: Array = (1 + epsilon) * m.total_work * part_shares / part_shares.sum()
    return capacity


class CoarseProblem(NamedTuple):
    """The input of the solver, and two starts."""

    m: CountModel
    parts: int
    epsilon: float  # a part may have (1 + epsilon) x its share of the work
    seed: int
    shares: Sequence[float] | None  # of the work, by part; None: equal
    capacity: Array  # most work, by part, with (1 + epsilon)
    chain: Array  # counts [layer, part] of the start `chain` (see above)
    balanced: Array  # counts of the start `balanced`

    def is_feasible(self, x: Array) -> bool:
        """Whether counts are within the capacities."""
        return bool((self.m.work @ x <= self.capacity).all())


def build_coarse_problem(
    m: CountModel, parts: int, epsilon: float, seed: int, shares: Sequence[float] | None
) -> CoarseProblem:
    """Returns the problem with its capacities and starts."""
    capacity = capacities(m, parts, epsilon, shares) * (1 + SLACK)
    starts = chain(m, capacity), balanced(m, capacity)
    return CoarseProblem(m, parts, epsilon, seed, shares, capacity, *starts)


class SearchRecord:
    """The best counts that any method found so far, and the highest lower bound."""

    def __init__(self, problem: CoarseProblem, clock: Clock, on_progress: OnProgress) -> None:
        self.problem, self.clock, self.on_progress = problem, clock, on_progress
        self.best, self.best_volume, self.start = problem.balanced, math.inf, "balanced"
        # Columns x[:, p], the counts of single parts, of the feasible partitions offered so far: the lower
        # bound begins with them (lower_bound.py). The key is the array as bytes, so that each is kept once.
        self.columns: dict[bytes, Array] = {}
        self.bound = 0.0
        # Every volume is a multiple of this:
        self.volume_unit = int(np.gcd.reduce(problem.m.cost)) if len(problem.m.cost) else 1
        self.started_at = clock.seconds

    @property
    def proven(self) -> bool:
        """Whether no partition can be better than the best."""
        return self.bound >= self.best_volume

    def offer(self, name: str, x: Array) -> None:
        """Takes counts from the start `name`: keeps them if they are feasible and the best so far."""
        if not self.problem.is_feasible(x):
            return
        for p in range(self.problem.parts):
            self.columns.setdefault(x[:, p].tobytes(), x[:, p].copy())
        new_volume = volume(self.problem.m, x)
        if new_volume < self.best_volume:
            self.best, self.best_volume, self.start = x.copy(), new_volume, name
            seconds = self.clock.seconds - self.started_at
            metrics = {"volume": self.best_volume, "lower_bound": self.bound, "seconds": seconds}
            self.on_progress({"step": name, **metrics})

    def raise_bound(self, bound: float) -> None:
        """Takes a lower bound, rounded up to the next volume that is possible."""
        if math.isfinite(bound):  # inf: there is no feasible partition
            self.bound = max(
                self.bound, self.volume_unit * math.ceil(bound / self.volume_unit - 1e-6)
            )

    def run_until(
        self,
        deadline: float,
        steps: Iterator[Any],
        ended: Callable[[Any], bool] = lambda step: False,
    ) -> None:
        """Advances `steps` until the deadline, until `ended(step)` is true, or until the best is proven.

        deadline: seconds of the clock.
        """
        while self.clock.seconds < deadline and not self.proven:
            step = next(steps, None)
            if step is None or ended(step):
                return

    def solution(self) -> CoarseSolution:
        """Returns the best counts; the balanced start if none were feasible."""
        return CoarseSolution(
            self.best,
            volume(self.problem.m, self.best),
            self.bound,
            self.proven,
            self.clock.seconds - self.started_at,
            self.start,
            self.problem.is_feasible(self.best),
        )


class AnnealingRuns:
    """The runs of annealing. They continue from their own best counts, not from the record's: so what a run
    does depends on the seed and the runs before it, and not on what other methods find."""

    def __init__(self, problem: CoarseProblem, record: SearchRecord) -> None:
        self.problem, self.record = problem, record
        self.neighbours = coarse_annealing.build_neighbours(problem.m)
        # Elements that a part receives on average in the start `chain`: the unit of temperatures
        self.part_volume = (volume(problem.m, problem.chain) + 1) / problem.parts
        self.best, self.best_volume = problem.chain, math.inf

    def steps(self, given: Sequence[Array], blocks_deadline: float) -> Iterator[int]:
        """Executes the runs one after the other; yields the number of the round after every chunk of moves.

        given: starts of the caller; blocks_deadline: Mt-KaHyPar, a partitioner that works on blocks of
        filters (kahypar_blocks.py), is skipped if it would take longer.
        """
        m, capacity = self.problem.m, self.problem.capacity
        for run_number, (round_number, name, x, hot) in enumerate(
            self._runs(given, blocks_deadline)
        ):
            # The factor gives the runs of different seeds different random numbers.
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
        """Yields, without end, a run: its round, the start's name and counts, and the first temperature.

        The temperature is one of HOT, WARM and MILD.
        """
        problem, warm_starts = self.problem, [("given", x) for x in given]
        m, parts, epsilon, seed, shares, *_ = problem
        yield from ((0, *named_start, WARM) for named_start in warm_starts)
        yield 0, "chain", problem.chain, HOT
        yield 0, "balanced", problem.balanced, HOT
        yield 0, "layerwise", layerwise(m, problem.capacity), HOT
        for blocks in (16, 32):  # per layer
            if self.record.clock.seconds + _expected_seconds(m, parts, blocks) < blocks_deadline:
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
        """Returns a start: a short search for half as many parts, each of which is then cut in two."""
        # pairs: [half, 2] the capacities of two consecutive parts; capacity: of both together
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
        # walk.best[p]: the units of part p by layer. `chain` with these units only, and with two parts,
        # cuts part p in two: the earlier layers go into one half, the later ones into the other.
        cut = [chain(m._replace(units=counts), pairs[p]) for p, counts in enumerate(walk.best)]
        return np.concatenate(cut, axis=1)


def _warm_up(problem: CoarseProblem) -> None:
    """Runs one step of each JIT-compiled function, so that compilation does not count as search time."""
    walk = coarse_annealing.start_walk(problem.m, problem.chain, problem.capacity, 0)
    next(
        coarse_annealing.anneal(
            problem.m,
            coarse_annealing.build_neighbours(problem.m),
            problem.capacity,
            walk,
            1,  # move
            1.0,  # first temperature
            1.0,  # last temperature
        )
    )
    next(lower_bounds(problem.m, problem.capacity, ()))


def _bound_steps(record: SearchRecord) -> Iterator[float]:
    """Improves the record's lower bound step by step."""
    problem = record.problem
    for bound in lower_bounds(
        problem.m, problem.capacity, record.columns.values(), record.best_volume
    ):
        record.raise_bound(bound)
        yield bound


def _run_exact(record: SearchRecord, seconds: float) -> None:
    """Runs the exact program, which may raise the bound and may find better counts."""
    problem, start = record.problem, record.best if math.isfinite(record.best_volume) else None
    result = exact.solve(problem.m, problem.capacity, seconds=seconds, start=start)
    if result.x is not None:
        record.offer("exact", result.x)
    record.raise_bound(result.lower_bound)


def _expected_seconds(m: CountModel, parts: int, blocks: int) -> float:
    """Returns a generous estimate of the seconds that Mt-KaHyPar takes."""
    # In its hypergraph (kahypar_blocks.py) every block of a piece of a map has a net: a set of vertices,
    # called pins, which are mainly all blocks of the map's dense readers. So a map has pieces x blocks
    # nets with about dense readers x blocks pins each. np.diff(..._start): how many each map has.
    pins = float((np.diff(m.dense_start) * np.diff(m.piece_start)).sum()) * blocks * blocks
    return 0.2 + 4e-6 * pins * math.sqrt(parts)
