"""The starts of `auto`: baselines, expert plans and OptCNN's optima, each timed for a single step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from raddle.errors import OutOfTime
from raddle.searches.attempts import Attempts
from raddle.searches.auto.candidates import Candidate, CandidateSimulator, CandidateTimer
from raddle.searches.baselines import BASELINES
from raddle.searches.experts.degrees import SPLIT_KINDS, split_starts
from raddle.searches.experts.sharding import SYNC_KINDS
from raddle.searches.grids import Tiles
from raddle.searches.nodes import devices_per_node
from raddle.searches.optcnn.optima import optima, staged_optima
from raddle.searches.plan_space import PlanSpace
from raddle.searches.ranking import MAX_EVALUATED_DEVICES
from raddle.searches.settings import AUTO, Settings
from raddle.searches.starts import StartsFunction, baseline_starts, expert_starts
from raddle.searches.stopwatch import Clock
from raddle.simulation.fast.evaluator import Evaluator

STARTS_SHARE = 0.4  # of the budget: making the starts that are found by a search
BASELINES_END = 0.6  # no baseline is timed when this fraction of the budget is used up
# Baselines that divide channels, and so send messages between all pairs of devices.
SLOW = ("model", "filter-horizontal", "filter-incremental", "channel-incremental")
NO_TIME = 2**62  # the time of a candidate that could not be timed, in nanoseconds


def is_expert(c: Candidate) -> bool:
    """Returns whether a candidate is a plan with a name, than which `auto` shall never be slower."""
    return c.name in BASELINES or c.name in SYNC_KINDS or c.name.startswith(SPLIT_KINDS)


@dataclass
class StartTimer:
    """Makes and times the starts. note_stop: is called if the clock or the user ends the work too early."""

    settings: Settings
    space: PlanSpace
    attempts: Attempts
    simulator: CandidateSimulator
    timer: CandidateTimer
    note_stop: Callable[[BaseException], None]

    def timed_starts(self) -> list[Candidate]:
        """Returns all starts as candidates, with the time of a single step."""
        self.settings.on_progress(self.settings.running_clock.progress("starts"))
        tiles_by_start = baseline_starts(self.space, BASELINES, self.attempts)
        for name, tiles in self.settings.starts.items():
            with self.attempts.attempt(name):
                tiles_by_start[name] = self.space.with_pins(tiles)
        clock = self.settings.running_clock.part(STARTS_SHARE)  # leaves time for what follows
        settings = replace(self.settings, clock=clock)
        space = PlanSpace(self.space.graph, self.space.cluster, settings)
        try:
            for name, starts in self._start_functions().items():
                with self.attempts.attempt(name):
                    tiles_by_start |= starts(space)
        except (KeyboardInterrupt, OutOfTime) as stop:
            if not tiles_by_start:
                raise
            self.note_stop(stop)
        if len(self.space.cluster.devices) > MAX_EVALUATED_DEVICES:
            return self._simulated_starts(tiles_by_start)
        candidates: list[Candidate] = []
        try:
            # Tiles whose messages are many go last: on many devices, each takes seconds to time.
            for name, tiles in sorted(tiles_by_start.items(), key=lambda start: start[0] in SLOW):
                if candidates and self._is_too_late(name, clock):
                    continue
                with self.attempts.attempt(name):
                    candidates.append(self.timer.time_candidate(name, tiles))
                if name == "data":
                    candidates += self._sharded_starts(tiles)
        except OutOfTime as stop:
            self.note_stop(stop)
            if not candidates:  # nothing could be timed: take the first, which is the simplest
                name, tiles = next(iter(tiles_by_start.items()))
                candidates.append(Candidate(name, tiles, NO_TIME))
        return candidates

    def _is_too_late(self, name: str, clock: Clock) -> bool:
        """Returns whether no time is left to time a start; baselines may take time from what follows."""
        running = self.settings.running_clock
        if name in BASELINES:
            return running.seconds > BASELINES_END * running.budget
        return clock.expired

    def _sharded_starts(self, data: Tiles) -> list[Candidate]:
        """Returns data parallelism with ZeRO: fsdp, zero2 and, with several nodes, hsdp."""
        starts: list[Candidate] = []
        cluster = self.space.cluster
        if self.settings.sync != AUTO or len(cluster.devices) < 2:
            return starts
        for name, sync_of in SYNC_KINDS.items():
            if name == "hsdp" and not devices_per_node(cluster):
                continue
            with self.attempts.attempt(name):
                plan = self.simulator.plan(data, sync=sync_of(cluster))
                evaluator = Evaluator(
                    self.space.graph,
                    cluster,
                    plan,
                    self.settings.profile,
                    self.settings.running_clock.look,
                )
                time, load = evaluator.time(), int(evaluator.load.max())
                assert time is not None  # it is None only if a time limit is given
                starts.append(Candidate(name, data, time, load, sync=plan.sync))
        return starts

    def _start_functions(self) -> dict[str, StartsFunction]:
        """Returns the functions that make starts by a search of their own, by name."""
        if len(self.space.cluster.devices) > MAX_EVALUATED_DEVICES:
            return {"optcnn": optima}
        return {
            "split by degrees": split_starts,
            "optcnn": optima,
            "experts": expert_starts,
            # The groups are divided into 2 or 4 stages, each with OptCNN's optimum on its own devices.
            "staged optcnn": staged_optima,
        }

    def _simulated_starts(self, tiles_by_start: Mapping[str, Tiles]) -> list[Candidate]:
        """Returns the starts for very many devices: data parallelism and OptCNN's optima, each simulated.

        Other starts have a message for every pair of devices, and take minutes to lower.
        """
        candidates: list[Candidate] = []
        for name, tiles in tiles_by_start.items():
            if name != "data" and not name.startswith("optcnn"):
                continue
            if candidates and self.settings.running_clock.expired:
                break
            try:
                with self.attempts.attempt(name):
                    candidates.append(self.simulator.simulate_single_step(name, tiles))
            except OutOfTime as stop:
                self.note_stop(stop)
                return candidates or [Candidate(name, tiles, NO_TIME)]
        return candidates
