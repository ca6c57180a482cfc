"""The candidate plans of `auto`, and the two ways to time them.

CandidateTimer uses the fast evaluator (simulation/fast), which times a single step. The evaluator holds one
plan; *moving* the evaluator means giving its plan other tiles. CandidateSimulator runs the full simulation
of several steps, which also gives the peak memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from raddle.clusters import Cluster
from raddle.errors import InputError, OutOfTime
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.searches.attempts import Attempts
from raddle.searches.grids import Tiles
from raddle.searches.predict import simulate_steps
from raddle.searches.recomputation import recompute_blocks
from raddle.searches.settings import Settings
from raddle.searches.single_step import simulate_single_step
from raddle.searches.stopwatch import Clock
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.memory.check_memory import fits
from raddle.simulation.memory.peaks import peak_bytes


@dataclass
class Candidate:
    """A plan that `auto` may return, with its predicted times and memory."""

    name: str
    tiles: Tiles
    time: int  # nanoseconds of a single step
    load: int = 0  # busy nanoseconds of the busiest device or link: no step is shorter
    step_seconds: float | None = None  # of a step in the steady state; None: not simulated yet
    peaks: tuple[int, ...] = ()  # peak bytes of each device
    fits: bool | None = None  # the peaks fit the devices' memory
    recompute: int | None = None  # number of blocks for activation checkpointing; None: without it
    sync: str = ""  # the sync kind that it needs, such as "sharded"; "": that of the settings
    failed: bool = False  # the simulation failed

    def is_simulated_as(self, other: Candidate) -> bool:
        """Returns whether this candidate has been simulated, and the other one is the same plan."""
        return (
            self.step_seconds is not None
            and (self.time, self.sync, self.recompute) == (other.time, other.sync, other.recompute)
            and self.tiles == other.tiles
        )

    def row(self) -> dict[str, Any]:
        """Returns the candidate as an entry of `tried` in plan files and --json output.

        `step_ms`: of a step in the steady state if `simulated` is true, else of a single step.
        """
        return {
            "name": self.name,
            "step_ms": 1e3 * self.step_seconds
            if self.step_seconds is not None
            else self.time / 1e6,
            "simulated": self.step_seconds is not None,
            "fits": self.fits,
            "peak_bytes": max(self.peaks) if self.peaks else None,
            "recompute": self.recompute,
            **({"sync": self.sync} if self.sync else {}),
        }

    @property
    def simulated_seconds(self) -> float:
        """Seconds of a step in the steady state; the candidate must have been simulated."""
        assert self.step_seconds is not None, f"{self.name} has not been simulated"
        return self.step_seconds


class CandidateSimulator:
    """Simulates candidates; failures are recorded in `attempts`."""

    def __init__(
        self, graph: Graph, cluster: Cluster, settings: Settings, attempts: Attempts
    ) -> None:
        self.graph, self.cluster, self.settings, self.attempts = graph, cluster, settings, attempts

    def plan(self, tiles: Tiles, recompute: int | None = None, sync: str = "") -> Plan:
        """Returns a plan with these tiles.

        recompute: number of blocks for activation checkpointing. sync: "" is that of the settings.
        """
        settings, batch = self.settings, self.graph.batch
        plan = Plan(tiles, len(self.cluster.devices), batch=batch, **settings.plan_fields)
        if sync:
            plan = replace(plan, sync=sync)
        return (
            plan
            if recompute is None
            else replace(plan, recompute=recompute_blocks(self.graph, recompute))
        )

    def simulate_single_step(self, name: str, tiles: Tiles) -> Candidate:
        """Returns a new candidate, with the time and load of a single simulated step."""
        plan = self.plan(tiles)
        step = simulate_single_step(
            self.graph, plan, self.cluster, self.settings.profile, self.settings.running_clock.look
        )
        return Candidate(name, tiles, *step)

    def simulate(self, c: Candidate, clock: Clock | None = None) -> bool:
        """Simulates several steps, stores times and memory in the candidate, and returns whether it worked.

        A candidate is simulated only once; a second call returns the same answer. Raises OutOfTime if the
        clock of the search does not allow it.
        """
        look = (clock or self.settings.running_clock).look
        if c.step_seconds is None and not c.failed:
            with self.attempts.attempt(c.name):
                plan = self.plan(c.tiles, c.recompute, c.sync)
                timeline = simulate_steps(
                    self.graph, plan, self.cluster, self.settings.profile, look
                )
                peaks = tuple(peak_bytes(timeline, look=look))
                c.step_seconds, c.peaks = timeline.step_seconds, peaks
                c.fits = fits(c.peaks, self.cluster)
            c.failed = c.step_seconds is None
        return not c.failed


class CandidateTimer:
    """Times candidates with the fast evaluator, which is built when it is first needed."""

    def __init__(self, simulator: CandidateSimulator) -> None:
        self.simulator = simulator
        self.evaluator: Evaluator | None = None

    def evaluator_at(self, tiles: Tiles) -> Evaluator:
        """Returns the evaluator, moved to a plan's tiles.

        The evaluator refuses an invalid plan (InputError) before it changes anything, and is used again.
        Any other exception may leave it half moved, so a new evaluator is built for the next plan.
        """
        evaluator, self.evaluator = self.evaluator, None
        simulator = self.simulator
        try:
            if evaluator is None:
                plan = simulator.plan(tiles)
                evaluator = Evaluator(
                    simulator.graph, simulator.cluster, plan, simulator.settings.profile,
                    simulator.settings.running_clock.look,
                )  # fmt: skip
            evaluator.move(tiles)
        except (InputError, OutOfTime):
            self.evaluator = evaluator
            raise
        self.evaluator = evaluator
        return evaluator

    def time_candidate(self, name: str, tiles: Tiles) -> Candidate:
        """Returns a new candidate, with the time and load of a single step."""
        evaluator = self.evaluator_at(tiles)
        time = evaluator.time()
        assert time is not None  # it is None only if a time limit is given
        return Candidate(name, tiles, time, int(evaluator.load.max()))

    def discard_evaluator(self) -> None:
        """Drops the evaluator, which may be half moved; the next plan gets a new one."""
        self.evaluator = None
