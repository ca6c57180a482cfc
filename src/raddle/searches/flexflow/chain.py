"""One Markov chain of a Monte Carlo search over plans (FlexFlow, arXiv 1807.05358, section 6).

A proposal is a change of the current plan. It is accepted with probability
min(1, exp(beta · (old time − new time))). The random number that decides is drawn before the proposal is
timed. So the longest time that would still be accepted is known, and the simulation of a proposal stops
when it is certain to take longer (simulation/fast/kernel.py). The decisions are exactly those of full
simulations.

A move changes the configurations of one or more groups. Differs from the paper: besides uniform moves, that
is random ones, there are guided moves, such as taking the configuration of a neighbour (moves.py). There is
no incremental simulation, which was slower than these shortened simulations (bench/search).
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

# 1 / beta, as a fraction of the best step time: a plan that is slower by 0.3 % is accepted with
# probability 1/e.
TEMPERATURE = 0.003


@dataclass
class Chain:
    """The current plan of a chain, and the best plan that it has seen."""

    space: PlanSpace  # the groups of the graph and their possible configurations
    evaluator: Evaluator  # times steps; it holds the plan of one chain, and all chains share it
    start: str  # name of the plan from which the chain started
    tiles: Tiles  # tiles of the current plan
    time: int  # nanoseconds of a step of the current plan
    best: Tiles  # tiles of the best plan
    best_time: int  # nanoseconds of a step of the best plan
    mover: MoveProposer  # proposes the changes of the plan
    rng: random.Random
    temperature: float = TEMPERATURE
    proposals: int = 0  # number of proposals so far
    accepted: int = 0  # number of accepted proposals
    since_improvement: int = 0  # proposals since the last improvement
    fits: Callable[[], bool] = lambda: True  # whether the evaluator's plan fits the devices' memory

    def __post_init__(self) -> None:
        """Reads the configuration of each group from its tiles; None if no configuration gives them."""
        self.state: list[Configuration | None] = [
            self.space.configuration_of(g, self.tiles) for g in range(len(self.space.groups))
        ]

    def move_evaluator(self) -> None:
        """Moves the shared evaluator to the current plan of this chain."""
        self.evaluator.move(self.tiles)

    def step(self) -> bool:
        """Makes one proposal and accepts or rejects it; returns True if it is the best plan so far."""
        self.proposals += 1
        self.since_improvement += 1
        moves = self.mover.propose(self.state)
        draw = self.rng.random()  # decides whether the proposal is accepted
        if not moves:
            return False
        changes = self.space.changes(self.tiles, moves)
        try:
            undo = self.evaluator.move(changes)
        except InputError:
            return False  # the proposal is not a valid plan
        limit = self.time + self._accepted_slowdown(draw)
        time = self.evaluator.time(limit)  # None: longer than the limit
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
        """Returns how many nanoseconds slower a proposal may be to be accepted: −ln(draw) / beta."""
        if self.temperature <= 0:
            return 0
        # 1e-300: a draw of 0 has no logarithm
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
    """Returns a chain whose first plan has these tiles; gives the evaluator's plan the same tiles.

    guided: the fraction of guided moves among the proposals, from 0 to 1.
    """
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
