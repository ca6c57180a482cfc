"""The best coarse partition that a budget of time finds, and how far from the best it can be at most.

Quick starts and Mt-KaHyPar's partition of blocks are annealed, again and again and longer each time, in an
order that depends on the seed only: more time continues what less time has done. For few parts an exact
program proves what the annealing found; a lower bound says what no partition can be below.
"""

# l: layer; p: part

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from raddle.searches.hypergraph import annealing, exact
from raddle.searches.hypergraph.blocks import partition_blocks
from raddle.searches.hypergraph.bound import bounds as lower_bounds
from raddle.searches.hypergraph.counts import Array, Model, volume

Heard = Callable[[Mapping[str, Any]], None]

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
    heard: Heard = lambda step: None,
) -> Solution:
    """The counts of least volume that are found in `budget` seconds, after kernels are compiled.

    A part may have (1 + epsilon) x its share of all work. Given starts are counts [layer, part].
    """
    if parts == 1:
        return Solution(m.units[:, None].copy(), 0, 0.0, True, 0.0, "whole", True)
    given = [np.asarray(x, np.int64) for x in starts]
    return _Portfolio(m, parts, epsilon, seed, shares, heard).run(budget, given)


def capacities(m: Model, parts: int, epsilon: float, shares: Sequence[float] | None) -> Array:
    """The most work of every part."""
    own = np.ones(parts) if shares is None else np.asarray(shares, np.float64)
    found: Array = (1 + epsilon) * m.total * own / own.sum()
    return found


class _Portfolio:
    """What has been found; the annealing has a best of its own, so that nothing else disturbs its order."""

    def __init__(
        self,
        m: Model,
        parts: int,
        epsilon: float,
        seed: int,
        shares: Sequence[float] | None,
        heard: Heard,
    ) -> None:
        self.m, self.parts, self.epsilon, self.seed, self.shares = m, parts, epsilon, seed, shares
        self.heard = heard
        self.capacity = capacities(m, parts, epsilon, shares) * (1 + SLACK)
        self.touch = annealing.touching(m)
        self.chain, self.balanced = chain(m, self.capacity), balanced(m, self.capacity)
        self.heat = (volume(m, self.chain) + 1) / parts
        self.unit = int(np.gcd.reduce(m.cost)) if len(m.cost) else 1
        self.best, self.least, self.start = self.balanced, math.inf, "balanced"
        self.annealed, self.least_annealed = self.chain, math.inf
        self.columns: dict[bytes, Array] = {}  # of partitions within the capacities
        self.bound = 0.0
        # compiles
        walk = annealing.state(m, self.chain, self.capacity, 0)
        next(annealing.anneal(m, self.touch, self.capacity, walk, 1, 1.0, 1.0))
        next(lower_bounds(m, self.capacity, ()))
        self.begun = perf_counter()

    def run(self, budget: float, given: Sequence[Array]) -> Solution:
        for name, x in (("balanced", self.balanced), ("chain", self.chain)):
            self._found(name, x)
        for x in given:
            self._found("given", x)
        rounds = self._annealing(given, self.begun + 0.5 * budget)
        # a first round, a look whether that was the best already, and what time is left
        self._until(self.begun + 0.5 * budget, rounds, lambda turn: turn > 0)
        bounds = self._bounds()
        self._until(perf_counter() + 0.12 * budget, bounds)
        if self.parts <= 4 and self.parts * self.m.layers <= EXACT and not self._proven():
            self._exact(min(0.4 * budget, self.begun + budget - perf_counter()))
        self._until(self.begun + 0.87 * budget, rounds)
        self._until(self.begun + budget, bounds)
        self._until(self.begun + budget, rounds)
        return Solution(
            self.best,
            volume(self.m, self.best),
            self.bound,
            self._proven(),
            perf_counter() - self.begun,
            self.start,
            bool((self.m.work @ self.best <= self.capacity).all()),
        )

    def _until(
        self,
        deadline: float,
        steps: Iterator[Any],
        ended: Callable[[Any], bool] = lambda step: False,
    ) -> None:
        """Step by step, as long as there is something to find."""
        while perf_counter() < deadline and not self._proven():
            step = next(steps, None)
            if step is None or ended(step):
                return

    def _proven(self) -> bool:
        return self.bound >= self.least

    def _found(self, name: str, x: Array) -> None:
        if (self.m.work @ x > self.capacity).any():
            return
        for p in range(self.parts):
            self.columns.setdefault(x[:, p].tobytes(), x[:, p].copy())
        got = volume(self.m, x)
        if got < self.least:
            self.best, self.least, self.start = x.copy(), got, name
            self._tell(name)

    def _tell(self, name: str) -> None:
        seconds = perf_counter() - self.begun
        figures = {"volume": self.least, "lower_bound": self.bound, "seconds": seconds}
        self.heard({"step": name, **figures})

    def _annealing(self, given: Sequence[Array], soon: float) -> Iterator[int]:
        """The round, after every chunk of the runs in their order."""
        for number, (turn, name, x, heat) in enumerate(self._runs(given, soon)):
            walk = annealing.state(self.m, x, self.capacity, self.seed * 1_000_003 + number)
            ends = heat * self.heat, COLD * self.heat
            moves = SHORTEST << turn
            yield turn
            for _ in annealing.anneal(self.m, self.touch, self.capacity, walk, moves, *ends):
                least = float(walk.figures[annealing.LEAST])
                if least < self.least_annealed:
                    self.annealed, self.least_annealed = walk.best.T.copy(), least
                    self._found(name, self.annealed)
                yield turn
            if math.isfinite(walk.figures[annealing.LEAST]):
                self._found(name, walk.best.T)

    def _runs(self, given: Sequence[Array], soon: float) -> Iterator[tuple[int, str, Array, float]]:
        """Round, name, start and temperature of all runs, without end."""
        m, warm = self.m, [("given", x) for x in given]
        yield from ((0, *own, WARM) for own in warm)
        yield 0, "chain", self.chain, HOT
        yield 0, "balanced", self.balanced, HOT
        yield 0, "layerwise", layerwise(m, self.capacity), HOT
        for blocks in (16, 32):
            if perf_counter() + _patience(m, self.parts, blocks) < soon:
                x = partition_blocks(
                    m, self.parts, self.epsilon, blocks, self.seed, shares=self.shares
                )
                warm.append((f"Mt-KaHyPar on {blocks} blocks", x))
                self._found(*warm[-1])
                yield 0, *warm[-1], WARM
        if self.parts % 2 == 0:
            yield 0, "halves", self._halves(), WARM
        for turn in itertools.count(1):
            yield turn, "chain", self.chain, HOT
            yield turn, "annealing", self.annealed, WARM
            yield from ((turn, *own, WARM) for own in warm)
            yield turn, "annealing", self.annealed, MILD

    def _halves(self) -> Array:
        """A short search for half as many parts, whose parts are cut in two."""
        m, pairs = self.m, self.capacity.reshape(-1, 2)
        capacity = pairs.sum(axis=1)
        x = chain(m, capacity)
        walk = annealing.state(m, x, capacity, self.seed)
        heat = (volume(m, x) + 1) / len(pairs)
        if len(pairs) > 1:
            ends = HOT * heat, COLD * heat
            for _ in annealing.anneal(m, self.touch, capacity, walk, SHORTEST, *ends):
                pass
        cut = [chain(m._replace(units=own), pairs[p]) for p, own in enumerate(walk.best)]
        return np.concatenate(cut, axis=1)

    def _bounds(self) -> Iterator[float]:
        """Bounds rounded up to a volume that can be."""
        for bound in lower_bounds(self.m, self.capacity, self.columns.values(), self.least):
            self._raise(bound)
            yield bound

    def _raise(self, bound: float) -> None:
        if math.isfinite(bound):  # or there is no partition
            self.bound = max(self.bound, self.unit * math.ceil(bound / self.unit - 1e-6))

    def _exact(self, seconds: float) -> None:
        start = self.best if math.isfinite(self.least) else None
        found = exact.solve(self.m, self.capacity, seconds=seconds, start=start)
        if found.x is not None:
            self._found("exact", found.x)
        self._raise(found.lower_bound)


def _patience(m: Model, parts: int, blocks: int) -> float:
    """About how many seconds Mt-KaHyPar takes, generously."""
    pins = float((np.diff(m.dense_at) * np.diff(m.piece_at)).sum()) * blocks * blocks
    return 0.2 + 4e-6 * pins * math.sqrt(parts)


def chain(m: Model, capacity: Array) -> Array:
    """Layers in their order fill one part after the other, each to its share of the work."""
    ends = np.cumsum(capacity / capacity.sum()) * m.total
    ends[-1] = math.inf
    x = np.zeros((m.layers, len(capacity)), np.int64)
    before = np.concatenate([[0.0], np.cumsum(m.units * m.work)])
    for l in range(m.layers):
        # a unit lies where its middle does
        middles = before[l] + (np.arange(m.units[l]) + 0.5) * m.work[l]
        x[l] = np.bincount(np.searchsorted(ends, middles), minlength=len(capacity))
    return x


def balanced(m: Model, capacity: Array) -> Array:
    """Heavy units first, each into the part with the most of its capacity left: as even as can be."""
    x = np.zeros((m.layers, len(capacity)), np.int64)
    parts = [(0.0, p) for p in range(len(capacity))]
    for l in sorted(range(m.layers), key=lambda l: -m.work[l]):
        for _ in range(m.units[l]):
            full, p = parts[0]
            x[l, p] += 1
            heapq.heapreplace(parts, (full + m.work[l] / capacity[p], p))
    return x


def layerwise(m: Model, capacity: Array) -> Array:
    """Heavy layers first, each whole into the part with the most work left."""
    x = np.zeros((m.layers, len(capacity)), np.int64)
    left = capacity.copy()
    for l in sorted(range(m.layers), key=lambda l: -m.work[l] * m.units[l]):
        p = int(left.argmax())
        x[l, p] = m.units[l]
        left[p] -= m.work[l] * m.units[l]
    return x
