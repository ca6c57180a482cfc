"""Plans that compete to be the answer of `auto`, and how they are simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.searches.attempts import Attempts
from raddle.searches.grids import Tiles
from raddle.searches.predict import simulate_steps
from raddle.searches.recomputation import recompute_blocks
from raddle.searches.settings import Settings
from raddle.searches.single_step import simulate_single_step
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.memory.check_memory import fits
from raddle.simulation.memory.peaks import peak_bytes


@dataclass
class Candidate:
    """A plan on its way to being the answer."""

    name: str
    tiles: Tiles
    time: int  # nanoseconds of one step on its own
    load: int = 0  # of the busiest resource: no step is shorter
    step_seconds: float | None = None  # seconds, simulated
    peaks: tuple[int, ...] = ()
    fits: bool | None = None
    recompute: int | None = None
    failed: bool = False  # it could not be simulated

    def row(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "step_ms": 1e3 * self.step_seconds
            if self.step_seconds is not None
            else self.time / 1e6,
            "simulated": self.step_seconds is not None,
            "fits": self.fits,
            "peak_bytes": max(self.peaks) if self.peaks else None,
            "recompute": self.recompute,
        }

    @property
    def simulated_seconds(self) -> float:
        """Of a step among several, as simulated."""
        assert self.step_seconds is not None, f"{self.name} has not been simulated"
        return self.step_seconds


class CandidateSimulator:
    """Simulates candidates; one that cannot be is written down in `attempts`."""

    def __init__(
        self, graph: Graph, cluster: Cluster, settings: Settings, attempts: Attempts
    ) -> None:
        self.graph, self.cluster, self.settings, self.attempts = graph, cluster, settings, attempts

    def plan(self, tiles: Tiles, recompute: int | None = None) -> Plan:
        settings, batch = self.settings, self.graph.batch
        plan = Plan(tiles, len(self.cluster.devices), batch=batch, **settings.plan_fields)
        return (
            plan
            if recompute is None
            else replace(plan, recompute=recompute_blocks(self.graph, recompute))
        )

    def simulate_single_step(self, name: str, tiles: Tiles) -> Candidate:
        """A candidate whose step on its own is simulated."""
        plan = self.plan(tiles)
        step = simulate_single_step(self.graph, plan, self.cluster, self.settings.profile)
        return Candidate(name, tiles, *step)

    def simulate(self, c: Candidate) -> bool:
        """Whether a candidate's steps could be simulated; if so, it knows what they take."""
        if c.step_seconds is None and not c.failed:
            with self.attempts.attempt(c.name):
                plan = self.plan(c.tiles, c.recompute)
                timeline = simulate_steps(self.graph, plan, self.cluster, self.settings.profile)
                c.step_seconds, c.peaks = timeline.step_seconds, tuple(peak_bytes(timeline))
                c.fits = fits(c.peaks, self.cluster)
            c.failed = c.step_seconds is None
        return not c.failed


class CandidateTimer:
    """The evaluator, which times a step on its own; made for the first plan that it is asked for."""

    def __init__(self, simulator: CandidateSimulator) -> None:
        self.simulator = simulator
        self.evaluator: Evaluator | None = None

    def evaluator_at(self, tiles: Tiles) -> Evaluator:
        """The evaluator at a plan. It refuses plans as a whole; after a mistake it would be amid a move."""
        evaluator, self.evaluator = self.evaluator, None
        simulator = self.simulator
        try:
            if evaluator is None:
                plan = simulator.plan(tiles)
                evaluator = Evaluator(
                    simulator.graph, simulator.cluster, plan, simulator.settings.profile
                )
            evaluator.move(tiles)
        except InputError:
            self.evaluator = evaluator
            raise
        self.evaluator = evaluator
        return evaluator

    def time_candidate(self, name: str, tiles: Tiles) -> Candidate:
        evaluator = self.evaluator_at(tiles)
        time = evaluator.time()
        assert time is not None
        return Candidate(name, tiles, time, int(evaluator.load.max()))

    def discard_evaluator(self) -> None:
        """The next plan gets a new one: this one may have stopped amid a move."""
        self.evaluator = None
