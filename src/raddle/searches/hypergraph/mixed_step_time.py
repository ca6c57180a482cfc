"""Improves the simulated step time of a mixed partition, starting from the one with the fewest bytes.

A *mixed* partition splits each layer along an axis of its own: samples, filters, input channels, height or
width. A *block* is a layer with the operators that follow it; the *runs* of a block are consecutive units
(samples, filters, ...) and their devices (mixed_blocks.py). A *state* says, for each block, its axis and
how many units each part (device) has.

Few bytes do not make a short step: the partition with the fewest bytes often puts consecutive layers on
different devices, like the stages of a pipeline, which then wait for each other. So the moves of
mixed_moves.py are made again, and the simulated time of a step on the cluster decides
(simulation/fast/evaluator.py). A *walk* is a sequence of accepted moves. Walks start from the partition
with the fewest bytes, from two baselines, from given plans and from the basic starts of mixed_states.py;
after each round the slower half of the walks is dropped.
"""

# b: block

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError, OutOfTime
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.tiling import Tiling
from raddle.searches.baselines import applicable_baselines
from raddle.searches.grids import Tiles
from raddle.searches.hypergraph.mixed import MixedSolution, SplitChoice, choices
from raddle.searches.hypergraph.mixed_blocks import MixedBlocks, UnitRuns, block_tiles, build_blocks
from raddle.searches.hypergraph.mixed_layouts import block_ranges
from raddle.searches.hypergraph.mixed_model import MixedModel, build_mixed_model
from raddle.searches.hypergraph.mixed_moves import propose_move, random_run, seed_generator
from raddle.searches.hypergraph.mixed_states import (
    MixedState,
    basic_starts,
    state_of_tiles,
    tiles_of,
)
from raddle.searches.predict import simulate_steps
from raddle.searches.settings import OnProgress
from raddle.searches.stopwatch import Clock
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.memory.check_memory import fits
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.timeline import Timeline

FIRST_ROUND = 64  # proposals of each walk in the first round
TEMPERATURE = 0.003  # as a fraction of the best step time
# Baselines (plans of simple methods: searches/baselines; owt: one weird trick) whose step may be short
# although they send many bytes: they need not synchronise all weights.
BASELINE_STARTS = ("owt", "layerwise")
FINALISTS = 3  # walks whose best plan is simulated for several steps


@dataclass(frozen=True)
class TimedSolution:
    """The tiles of the fastest plan found, and its simulated metrics."""

    tiles: Tiles
    step_seconds: float
    before_seconds: float  # step time of the given partition
    volume_bytes: int  # that cross devices in a step
    fits: bool  # into the memory of all devices
    start: str  # name of the walk's start
    proposals: int  # moves that all walks tried
    seconds: float  # that the search took
    choices: tuple[SplitChoice, ...]  # by layer; empty if the given partition is best and has none


def improve_step_time(
    graph: Graph,
    cluster: Cluster,
    solution: MixedSolution,
    *,
    budget: float = 10.0,
    seed: int = 0,
    starts: Mapping[str, Mapping[str, Tiling]] | None = None,
    profile: Profile | None = None,
    clock: Clock | None = None,
    on_progress: OnProgress = lambda step: None,
    **settings: str,
) -> TimedSolution:
    """Returns the fastest plan found in about `budget` seconds; it is never slower than `solution`.

    If the solution fits into the devices' memory, so does the plan. starts: tiles of further plans, by
    name; settings: bn, sync and optimizer of the plan; clock: the clock of a larger search, which then
    gives the budget. Raises OutOfTime if not even the solution could be timed.
    """
    clock, blocks = clock or Clock(budget), build_blocks(graph)
    simulator = PlanSimulator(graph, cluster, profile, {"bn": "local", **settings}, clock)
    memory = np.array([device.memory for device in cluster.devices])
    proposer = Proposer(
        blocks,
        Evaluator(graph, cluster, simulator.plan(solution.tiles), profile, clock.look),
        memory,
        seed,
    )

    def report(step: str) -> None:
        on_progress(clock.progress(step))

    start_tiles = {
        "volume": solution.tiles,  # the partition with the fewest bytes
        **applicable_baselines(graph, cluster, BASELINE_STARTS),
        **(starts or {}),
    }
    walks = run_walks(proposer, proposer.start_walks(start_tiles), clock, report)
    given_timeline = simulator.simulate(solution.tiles)
    best, start, state = given_timeline, "volume", None
    with suppress(OutOfTime):  # then the best of those that were simulated
        for walk in walks[:FINALISTS]:
            timeline = simulator.simulate(walk.best_tiles)
            if _rank(timeline) < _rank(best):
                best, start, state = timeline, walk.name, walk.best_state
    return TimedSolution(
        dict(best.program.plan.tiles), best.step_seconds, given_timeline.step_seconds, best.comm_bytes,
        _fits(best), start, proposer.proposals, clock.seconds,
        solution.choices if state is None else choices(blocks, state),
    )  # fmt: skip


def _rank(timeline: Timeline) -> tuple[bool, float]:
    """Returns a sort key: plans that fit into memory first, then by step time."""
    return not _fits(timeline), timeline.step_seconds


def _fits(timeline: Timeline) -> bool:
    """Whether the plan fits into the memory of all devices."""
    return fits(peak_bytes(timeline), timeline.cluster)


@dataclass
class TimedWalk:
    """The current state of a walk, and the best state that it has reached."""

    name: str
    state: MixedState
    ranges: list[tuple[str, UnitRuns]]  # by block: axis and runs
    tiles: Tiles
    time: int  # nanoseconds of a step
    best_state: MixedState
    best_tiles: Tiles
    best_time: int


class PlanSimulator:
    """Simulates plans that differ only in their tiles."""

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        profile: Profile | None,
        settings: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self.graph, self.cluster, self.profile, self.settings = graph, cluster, profile, settings
        self.clock = clock

    def plan(self, tiles: Mapping[str, Tiling]) -> Plan:
        """Returns the plan with these tiles."""
        return Plan(tiles, len(self.cluster.devices), **self.settings)  # type: ignore[arg-type]

    def simulate(self, tiles: Mapping[str, Tiling]) -> Timeline:
        """Simulates several steps of the plan with these tiles."""
        return simulate_steps(
            self.graph, self.plan(tiles), self.cluster, self.profile, self.clock.look
        )


class Proposer:
    """Makes the proposals of walks and times them.

    The evaluator (a fast simulation) has the tiles of one walk at a time: run_walks first gives it those of
    the walk that is next. Its `move` changes tiles and returns what `restore` needs to undo that; `time`
    returns the nanoseconds of a step; its `memory` is the bytes that each device needs.
    """

    def __init__(
        self, blocks: MixedBlocks, evaluator: Evaluator, memory: np.ndarray, seed: int
    ) -> None:
        self.blocks, self.evaluator = blocks, evaluator
        self.model: MixedModel = build_mixed_model(blocks)
        # For each block: the batch-independent operators (they read no samples) whose results it reads
        self.independent_inputs = [
            blocks.independent_ops.read_by([name for group in block.groups for name in group.ops])
            for block in blocks.blocks
        ]
        self.allowed = np.ones(self.model.letter.shape, np.bool_)  # [block, axis]: all axes
        self.memory = memory  # by device: the bytes that it has
        self.rng = random.Random(seed)
        self.proposals = 0
        seed_generator(seed)

    def start_walks(self, start_tiles: Mapping[str, Mapping[str, Tiling]]) -> list[TimedWalk]:
        """Returns a walk from each start that is a mixed partition, and from the basic starts
        (mixed_states.py)."""
        parts = len(self.memory)
        states = {
            name: state_of_tiles(self.blocks, tiles, parts) for name, tiles in start_tiles.items()
        }
        states |= basic_starts(self.blocks, self.model, np.full(parts, 1 / parts))
        walks = (self._start_walk(name, s) for name, s in states.items() if s is not None)
        return [walk for walk in walks if walk is not None]

    def _start_walk(self, name: str, state: MixedState) -> TimedWalk | None:
        """Returns a walk from a state, or None if the plan of the state is impossible."""
        tiles = tiles_of(self.blocks, self.model, state)
        try:
            self.evaluator.move(tiles)
        except InputError:
            return None
        time = self.evaluator.time()
        assert time is not None
        ranges = block_ranges(self.blocks, self.model, *state)
        return TimedWalk(name, state, ranges, tiles, time, state.copy(), dict(tiles), time)

    def try_proposal(self, walk: TimedWalk) -> None:
        """Makes one proposal; it is accepted with probability min(1, exp((old - new) / temperature)).

        A proposal that needs more memory than a device has is never accepted.
        """
        self.proposals += 1
        new = walk.state.copy()
        lo, hi = random_run(len(new.axis))
        propose_move(self.model, new.axis, new.x, lo, hi, self.allowed)
        ranges = block_ranges(self.blocks, self.model, *new)
        changes = self._changed_tiles(walk, ranges)
        if not changes:
            return
        try:
            undo = self.evaluator.move(changes)
        except InputError:
            return  # such a plan is impossible
        # Nanoseconds by which the step may get longer. Drawn before the simulation, which can then stop
        # early; a longer step is accepted with the probability given above.
        tolerance = -math.log(max(self.rng.random(), 1e-300)) * TEMPERATURE * walk.best_time
        # None if the step takes longer than the limit:
        time = self.evaluator.time(walk.time + int(tolerance))
        if time is None or bool((self.evaluator.memory > self.memory).any()):
            self.evaluator.restore(undo)
            return
        walk.state, walk.ranges, walk.time = new, ranges, time
        walk.tiles.update(changes)
        if time < walk.best_time:
            walk.best_state, walk.best_tiles, walk.best_time = new.copy(), dict(walk.tiles), time

    def _changed_tiles(self, walk: TimedWalk, ranges: list[tuple[str, UnitRuns]]) -> Tiles:
        """Returns the tiles of blocks with changed ranges, and of batch-independent operators they read."""
        changed: Tiles = {}
        inputs: dict[str, Any] = {}
        for b, (old, new) in enumerate(zip(walk.ranges, ranges, strict=True)):
            if old != new:
                changed.update(block_tiles(self.blocks.blocks[b], *new))
                inputs.update((op.name, op) for op in self.independent_inputs[b])
        ordered = [op for op in reversed(self.blocks.graph.ops) if op.name in inputs]
        # place: puts operators on the devices that read their results
        changed.update(self.blocks.independent_ops.place(ordered, {**walk.tiles, **changed}))
        return changed


def run_walks(
    proposer: Proposer, walks: list[TimedWalk], clock: Clock, report: Callable[[str], None]
) -> list[TimedWalk]:
    """Runs the walks in rounds, each twice as long as the last; drops the slower half after each.

    Returns all walks, the fastest first.
    """
    proposals, dropped = FIRST_ROUND, list[TimedWalk]()
    while walks and not clock.expired:
        for walk in walks:
            proposer.evaluator.move(walk.tiles)
            for _ in range(proposals):
                if clock.expired:
                    break
                proposer.try_proposal(walk)
            best = min(w.best_time for w in walks)
            report(f"from {walk.name}, best {best / 1e6:.4g} ms")
        if len(walks) > 1:
            walks.sort(key=lambda walk: walk.best_time)
            kept_count = (len(walks) + 1) // 2
            dropped += walks[kept_count:]
            walks = walks[:kept_count]
            proposals *= 2
    return sorted([*walks, *dropped], key=lambda walk: walk.best_time)
