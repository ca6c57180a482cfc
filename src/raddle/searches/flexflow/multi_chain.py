"""Runs several Markov chains from several starts within a time budget, for `flexflow` and `auto`.

A chain changes its plan step by step; each change is a proposal, which is accepted or rejected (chain.py).
The chains take turns, the best start first. After each round the worse half of the chains is dropped and
the rounds become longer, until one chain remains. That chain runs until the budget is used up or nothing
has improved for PATIENCE proposals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raddle.errors import InputError, OutOfTime
from raddle.plans.tiling import Tiling
from raddle.searches.flexflow.chain import TEMPERATURE, Chain, start_chain
from raddle.searches.plan_space import PlanSpace
from raddle.searches.settings import BestSoFar, Settings
from raddle.searches.stopwatch import Clock
from raddle.simulation.fast.evaluator import Evaluator

ROUND = 64  # proposals of each chain in the first round
PATIENCE = 3000  # the last chain stops after this many proposals without an improvement


@dataclass
class MultiChain:
    """Several chains that share an evaluator, and the history of their best time."""

    space: PlanSpace  # the groups of the graph and their possible configurations
    evaluator: Evaluator  # times steps; shared by all chains
    clock: Clock
    settings: Settings
    chains: list[Chain] = field(default_factory=list)
    dropped: list[Chain] = field(default_factory=list)  # chains that run no longer
    history: list[BestSoFar] = field(default_factory=list)
    stopped: str = ""  # why the run ended, see SearchResult.stopped
    # Whether the evaluator's current plan fits memory; chains reject plans that do not.
    fits: Callable[[], bool] = lambda: True

    def add_chain(
        self, name: str, tiles: Mapping[str, Tiling], *, guided: float = 0.8
    ) -> Chain | None:
        """Adds a chain that starts from these tiles; returns None if they are not a valid plan.

        guided: the fraction of guided moves among the chain's proposals (moves.py); the other moves are
        uniformly random, as in the paper.
        """
        try:
            new = start_chain(
                self.space, self.evaluator, name, tiles, seed=self.settings.seed, guided=guided,
                temperature=TEMPERATURE,
            )  # fmt: skip
        except InputError:
            return None
        new.fits = self.fits
        self.chains.append(new)
        self._record_best()
        return new

    @property
    def all_chains(self) -> list[Chain]:
        """The chains that run, then those that were dropped."""
        return [*self.chains, *self.dropped]

    @property
    def proposals(self) -> int:
        """The number of proposals of all chains."""
        return sum(c.proposals for c in self.all_chains)

    @property
    def best(self) -> Chain:
        """The chain that has seen the best plan."""
        return min(self.all_chains, key=lambda c: c.best_time)

    def _record_best(self) -> None:
        best = self.best.best_time / 1e6
        if not self.history or best < self.history[-1].best_ms:
            self.history.append(BestSoFar(self.clock.seconds, self.proposals, best))

    def run(self, budget: float) -> None:
        """Runs the chains until the clock shows `budget` seconds; an interrupt ends the run earlier."""
        try:
            self._run(budget)
        except KeyboardInterrupt:
            self.stopped = "interrupt"
        except OutOfTime:
            self.stopped = "budget"

    def _run(self, budget: float) -> None:
        """Runs rounds over the chains, as the top of this file describes."""
        max_proposals = self.settings.proposals  # of all chains; None: no limit
        length = ROUND  # proposals of each chain in a round
        self.chains.sort(key=lambda c: c.time)
        while self.chains:
            for chain in list(self.chains):
                chain.move_evaluator()  # puts the plan of this chain into the shared evaluator
                for _ in range(length):
                    if self.clock.seconds >= budget:
                        self.stopped = "budget"
                        return
                    if max_proposals is not None and self.proposals >= max_proposals:
                        self.stopped = "proposals"
                        return
                    if chain.step():
                        self._record_best()
                self._report_progress(chain.start)
            if len(self.chains) > 1:
                ranked = sorted(self.chains, key=lambda c: c.best_time)
                keep = (len(ranked) + 1) // 2
                self.chains, losers = ranked[:keep], ranked[keep:]
                self.dropped += losers
                length *= 2
            elif self.chains[0].since_improvement >= PATIENCE:
                self.stopped = "no improvement"
                return
            elif self.chains[0].time > self.chains[0].best_time * 1.05:
                # The chain has moved too far from the best plan: it is slower by more than 5 %.
                self._restart(self.chains[0])

    def _report_progress(self, start: str) -> None:
        """Reports the best time so far. start: name of the start of the chain that has just run."""
        best = self.best.best_time / 1e6
        progress: dict[str, Any] = {
            **self.clock.progress(f"from {start}, best {best:.4g} ms"),
            "proposals": self.proposals,
            "best_ms": best,
        }
        self.settings.on_progress(progress)

    def _restart(self, chain: Chain) -> None:
        """Moves a chain back to the best plan that it has seen."""
        chain.tiles, chain.time = dict(chain.best), chain.best_time
        chain.__post_init__()  # reads the configurations from the new tiles
