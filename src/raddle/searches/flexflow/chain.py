"""One chain of a Markov chain Monte Carlo search over plans (FlexFlow, arXiv 1807.05358, section 6).

A proposal is accepted with probability min(1, exp(beta · (old − new))). The number that decides is drawn
first, so that the longest time that would still be accepted is known: what is certain to take longer is not
simulated to its end (simulation/fast/kernel.py). The decisions are exactly those of a full simulation.

Differs from the paper: guided moves beside the uniform ones (moves.py); no incremental simulation, which
the benchmark (bench/search) found to be slower than the shortened full one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raddle.errors import InputError
from raddle.plans.tiling import Tiling
from raddle.searches.configurations import Configuration
from raddle.searches.flexflow.moves import MoveProposer
from raddle.searches.grids import Tiles
from raddle.searches.plan_space import PlanSpace
from raddle.simulation.fast.evaluator import Evaluator

TEMPERATURE = 0.003  # of the time of a step: what is that much longer is accepted once in e times


@dataclass
class Chain:
    """Where a chain is, and the best that it has seen."""

    space: PlanSpace
    evaluator: Evaluator
    start: str
    tiles: Tiles
    time: int  # nanoseconds
    best: Tiles
    best_time: int
    mover: MoveProposer
    rng: random.Random
    temperature: float = TEMPERATURE
    proposals: int = 0
    accepted: int = 0
    since_improvement: int = 0  # proposals since the last improvement
    fits: Callable[[], bool] = lambda: True  # whether the evaluator's plan fits the memory

    def __post_init__(self) -> None:
        self.state: list[Configuration | None] = [
            self.space.configuration_of(g, self.tiles) for g in range(len(self.space.groups))
        ]

    def load_evaluator(self) -> None:
        """Sets the evaluator, which chains share, to where this chain is."""
        self.evaluator.move(self.tiles)

    def step(self) -> bool:
        """One proposal; whether it is better than all before."""
        self.proposals += 1
        self.since_improvement += 1
        moves = self.mover.propose(self.state)
        draw = self.rng.random()
        if not moves:
            return False
        changes = self.space.changes(self.tiles, moves)
        try:
            undo = self.evaluator.move(changes)
        except InputError:
            return False  # no plan can be so
        limit = self.time + self._accepted_slowdown(draw)
        time = self.evaluator.time(limit)
        if time is None or not self.fits():
            self.evaluator.restore(undo)
            return False
        self.accepted += 1
        self.tiles.update(changes)
        self.time = time
        for g, configuration in moves.items():
            self.state[g] = configuration
        if time >= self.best_time:
            return False
        self.best, self.best_time, self.since_improvement = dict(self.tiles), time, 0
        return True

    def _accepted_slowdown(self, draw: float) -> int:
        """Nanoseconds more than now that are accepted: −ln(u) / beta."""
        if self.temperature <= 0:
            return 0
        return int(-math.log(max(draw, 1e-300)) * self.temperature * self.best_time)


def start_chain(
    space: PlanSpace,
    evaluator: Evaluator,
    start: str,
    tiles: Mapping[str, Tiling],
    *,
    seed: int,
    guided: float = 0.8,
    temperature: float = TEMPERATURE,
) -> Chain:
    """A chain that begins with some tiles; the evaluator is set to them."""
    start_tiles = dict(tiles)
    evaluator.move(start_tiles)
    time = evaluator.time()
    assert time is not None
    rng = random.Random(f"{seed} {start}")
    mover = MoveProposer(space, rng, guided=guided)
    return Chain(
        space,
        evaluator,
        start,
        start_tiles,
        time,
        dict(start_tiles),
        time,
        mover,
        rng,
        temperature=temperature,
    )
