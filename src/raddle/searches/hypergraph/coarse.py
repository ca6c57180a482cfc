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

from raddle.searches.hypergraph import annealing, exact
from raddle.searches.hypergraph.blocks import partition_blocks
from raddle.searches.hypergraph.bound import bounds as lower_bounds
from raddle.searches.hypergraph.coarsestarts import balanced, chain, layerwise
from raddle.searches.hypergraph.counts import Array, Model, volume
from raddle.searches.settings import OnProgress

SHORTEST = 1 << 17  # moves of a run of the first round
EXACT = 256  # layers x parts, of at most 4 parts
HOT, WARM, MILD = 0.1, 0.03, 0.01  # temperatures, in what a part receives on average
COLD = 0.001
SLACK = 1e-9  # of a capacity, for rounding


class Solution(NamedTuple):
    """Counts, and what is known of them."""

    x: Array  # [layer, part]
    volume: int  # elements
    lower_bound: float  # of all partitions within the capacities
    proven: bool  # no partition has less volume
    seconds: float
    start: str  # what it was found from
    feasible: bool  # within the capacities


def solve(
    m: Model,
    parts: int,
    *,
    epsilon: float = 0.1,
    budget: float = 10.0,
    seed: int = 0,
    shares: Sequence[float] | None = None,
    starts: Sequence[Array] = (),
    heard: OnProgress = lambda step: None,
) -> Solution:
    """The counts of least volume that are found in `budget` seconds, after kernels are compiled.

    A part may have (1 + epsilon) x its share of all work. Given starts are counts [layer, part].
    """
    if parts == 1:
        return Solution(m.units[:, None].copy(), 0, 0.0, True, 0.0, "whole", True)
    given = [np.asarray(x, np.int64) for x in starts]
    case = case_of(m, parts, epsilon, seed, shares)
    _compile(case)
    record = Record(case, heard)
    begun = record.begun
    for name, x in (("balanced", case.balanced), ("chain", case.chain)):
        record.found(name, x)
    for x in given:
        record.found("given", x)
    rounds = Annealing(case, record).steps(given, begun + 0.5 * budget)
    # a first round, a look whether that was the best already, and what time is left
    record.until(begun + 0.5 * budget, rounds, lambda turn: turn > 0)
    bounds = _bounds(record)
    record.until(perf_counter() + 0.12 * budget, bounds)
    if parts <= 4 and parts * m.layers <= EXACT and not record.proven:
        _prove(record, min(0.4 * budget, begun + budget - perf_counter()))
    record.until(begun + 0.87 * budget, rounds)
    record.until(begun + budget, bounds)
    record.until(begun + budget, rounds)
    return record.solution()


def capacities(m: Model, parts: int, epsilon: float, shares: Sequence[float] | None) -> Array:
    """The most work of every part."""
    own = np.ones(parts) if shares is None else np.asarray(shares, np.float64)
    found: Array = (1 + epsilon) * m.total * own / own.sum()
    return found


class Case(NamedTuple):
    """What is to be partitioned, and where every search of it starts."""

    m: Model
    parts: int
    epsilon: float
    seed: int
    shares: Sequence[float] | None
    capacity: Array  # by part
    chain: Array
    balanced: Array

    def holds(self, x: Array) -> bool:
        """Whether counts are within the capacities."""
        return bool((self.m.work @ x <= self.capacity).all())


def case_of(
    m: Model, parts: int, epsilon: float, seed: int, shares: Sequence[float] | None
) -> Case:
    capacity = capacities(m, parts, epsilon, shares) * (1 + SLACK)
    own = chain(m, capacity), balanced(m, capacity)
    return Case(m, parts, epsilon, seed, shares, capacity, *own)


class Record:
    """The best counts that were found by anything, and the highest bound."""

    def __init__(self, case: Case, heard: OnProgress) -> None:
        self.case, self.heard = case, heard
        self.best, self.least, self.start = case.balanced, math.inf, "balanced"
        self.columns: dict[bytes, Array] = {}  # of partitions within the capacities
        self.bound = 0.0
        self.unit = int(np.gcd.reduce(case.m.cost)) if len(case.m.cost) else 1
        self.begun = perf_counter()

    @property
    def proven(self) -> bool:
        return self.bound >= self.least

    def found(self, name: str, x: Array) -> None:
        if not self.case.holds(x):
            return
        for p in range(self.case.parts):
            self.columns.setdefault(x[:, p].tobytes(), x[:, p].copy())
        got = volume(self.case.m, x)
        if got < self.least:
            self.best, self.least, self.start = x.copy(), got, name
            seconds = perf_counter() - self.begun
            figures = {"volume": self.least, "lower_bound": self.bound, "seconds": seconds}
            self.heard({"step": name, **figures})

    def bounded(self, bound: float) -> None:
        """No partition is below; rounded up to a volume that can be."""
        if math.isfinite(bound):  # or there is no partition
            self.bound = max(self.bound, self.unit * math.ceil(bound / self.unit - 1e-6))

    def until(
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

    def solution(self) -> Solution:
        return Solution(
            self.best,
            volume(self.case.m, self.best),
            self.bound,
            self.proven,
            perf_counter() - self.begun,
            self.start,
            self.case.holds(self.best),
        )


class Annealing:
    """Runs of annealing; they have a best of their own, so that nothing else disturbs their order."""

    def __init__(self, case: Case, record: Record) -> None:
        self.case, self.record = case, record
        self.touch = annealing.touching(case.m)
        self.heat = (volume(case.m, case.chain) + 1) / case.parts
        self.best, self.least = case.chain, math.inf

    def steps(self, given: Sequence[Array], soon: float) -> Iterator[int]:
        """The round, after every chunk of the runs in their order."""
        m, capacity = self.case.m, self.case.capacity
        for number, (turn, name, x, heat) in enumerate(self._runs(given, soon)):
            walk = annealing.state(m, x, capacity, self.case.seed * 1_000_003 + number)
            ends = heat * self.heat, COLD * self.heat
            yield turn
            for _ in annealing.anneal(m, self.touch, capacity, walk, SHORTEST << turn, *ends):
                least = float(walk.figures[annealing.LEAST])
                if least < self.least:
                    self.best, self.least = walk.best.T.copy(), least
                    self.record.found(name, self.best)
                yield turn
            if math.isfinite(walk.figures[annealing.LEAST]):
                self.record.found(name, walk.best.T)

    def _runs(self, given: Sequence[Array], soon: float) -> Iterator[tuple[int, str, Array, float]]:
        """Round, name, start and temperature of all runs, without end."""
        case, warm = self.case, [("given", x) for x in given]
        m, parts, epsilon, seed, shares, *_ = case
        yield from ((0, *own, WARM) for own in warm)
        yield 0, "chain", case.chain, HOT
        yield 0, "balanced", case.balanced, HOT
        yield 0, "layerwise", layerwise(m, case.capacity), HOT
        for blocks in (16, 32):
            if perf_counter() + _patience(m, parts, blocks) < soon:
                x = partition_blocks(m, parts, epsilon, blocks, seed, shares=shares)
                warm.append((f"Mt-KaHyPar on {blocks} blocks", x))
                self.record.found(*warm[-1])
                yield 0, *warm[-1], WARM
        if parts % 2 == 0:
            yield 0, "halves", self._halves(), WARM
        for turn in itertools.count(1):
            yield turn, "chain", case.chain, HOT
            yield turn, "annealing", self.best, WARM
            yield from ((turn, *own, WARM) for own in warm)
            yield turn, "annealing", self.best, MILD

    def _halves(self) -> Array:
        """A short search for half as many parts, whose parts are cut in two."""
        m, pairs = self.case.m, self.case.capacity.reshape(-1, 2)
        capacity = pairs.sum(axis=1)
        x = chain(m, capacity)
        walk = annealing.state(m, x, capacity, self.case.seed)
        heat = (volume(m, x) + 1) / len(pairs)
        if len(pairs) > 1:
            ends = HOT * heat, COLD * heat
            for _ in annealing.anneal(m, self.touch, capacity, walk, SHORTEST, *ends):
                pass
        cut = [chain(m._replace(units=own), pairs[p]) for p, own in enumerate(walk.best)]
        return np.concatenate(cut, axis=1)


def _compile(case: Case) -> None:
    """A step of everything, so that no clock counts the compiler."""
    walk = annealing.state(case.m, case.chain, case.capacity, 0)
    next(annealing.anneal(case.m, annealing.touching(case.m), case.capacity, walk, 1, 1.0, 1.0))
    next(lower_bounds(case.m, case.capacity, ()))


def _bounds(record: Record) -> Iterator[float]:
    case = record.case
    for bound in lower_bounds(case.m, case.capacity, record.columns.values(), record.least):
        record.bounded(bound)
        yield bound


def _prove(record: Record, seconds: float) -> None:
    """The exact program, which may find something better, too."""
    case, start = record.case, record.best if math.isfinite(record.least) else None
    found = exact.solve(case.m, case.capacity, seconds=seconds, start=start)
    if found.x is not None:
        record.found("exact", found.x)
    record.bounded(found.lower_bound)


def _patience(m: Model, parts: int, blocks: int) -> float:
    """About how many seconds Mt-KaHyPar takes, generously."""
    pins = float((np.diff(m.dense_at) * np.diff(m.piece_at)).sum()) * blocks * blocks
    return 0.2 + 4e-6 * pins * math.sqrt(parts)
