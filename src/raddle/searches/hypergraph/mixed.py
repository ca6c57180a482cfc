"""Solves mixed partitions: splits each layer along an axis of its own, so that few bytes are sent.

The thesis (docs/papers.md) splits filters and their input channels only. Here a layer is split by sample,
filter, input channel, height or width, over any of the parts and in unequal shares. The search minimises
all bytes that cross devices in a step: activations, their gradients, partial sums and the synchronisation
of parameters. No part may have more than (1 + epsilon) x its share of the work. The search anneals a
compressed model (mixed_model.py, mixed_annealing.py); the reported bytes are counted from the lowered
program. The result never sends more than a baseline or a given plan that keeps this balance.

A *part* is a device. A *block* is a layer with the operators that follow it; the *units* of its axis are
samples, filters, ... (mixed_blocks.py). A *state* says, for each block, its axis and the units of each
part. A *baseline* is the plan of a simple method, such as data parallelism (searches/baselines).
"""

# p: part; a: axis of a block, by its position in MixedBlock.axes; state.x: units [block, part]

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from raddle.clusters import cluster
from raddle.errors import InputError, OutOfTime
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.tiling import Tiling
from raddle.program.lower import lower
from raddle.searches.baselines import applicable_baselines
from raddle.searches.grids import Tiles
from raddle.searches.hypergraph.mixed_annealing import CoolingSchedule, anneal
from raddle.searches.hypergraph.mixed_blocks import MixedBlocks, build_blocks
from raddle.searches.hypergraph.mixed_model import Array, MixedModel, build_mixed_model
from raddle.searches.hypergraph.mixed_rounds import annealing_rounds
from raddle.searches.hypergraph.mixed_states import (
    MixedState,
    basic_starts,
    normalize_state,
    state_of_tiles,
    tiles_of,
)
from raddle.searches.purposes import bytes_by_purpose
from raddle.searches.settings import OnProgress
from raddle.searches.stopwatch import Clock


class SplitChoice(NamedTuple):
    """The axis along which a layer and the operators that follow it are split, and the shares."""

    layer: str
    axis: str  # a letter: n sample, c filter, k input channel, h height, w width
    shares: tuple[int, ...]  # units of the axis, by part

    def __str__(self) -> str:  # "conv1: n 8@0 12@1": 8 samples in part 0, 12 in part 1
        units_by_part = {p: units for p, units in enumerate(self.shares) if units}
        if len(units_by_part) == 1:
            return f"{self.layer}: @{next(iter(units_by_part))}"
        return f"{self.layer}: {self.axis} " + " ".join(
            f"{n}@{p}" for p, n in units_by_part.items()
        )


@dataclass(frozen=True)
class MixedSolution:
    """The tiles of a plan, and what its lowered program sends."""

    tiles: Tiles
    volume_bytes: int  # that cross devices in a step
    bytes: Mapping[str, int]  # the same bytes by purpose (searches/purposes.py)
    work: tuple[int, ...]  # FLOPs of a forward, by part
    imbalance: float  # the largest ratio of a part's work to its share of all work
    seconds: float  # that the search took
    start: str  # name of the start, baseline or given plan that led to it
    choices: tuple[SplitChoice, ...]  # by layer; empty if the plan is a baseline or a given plan


def solve(
    graph: Graph,
    parts: int,
    *,
    epsilon: float = 0.1,
    budget: float = 10.0,
    seed: int = 0,
    shares: Sequence[float] | None = None,
    starts: Mapping[str, Mapping[str, Tiling]] | None = None,
    clock: Clock | None = None,
    on_progress: OnProgress = lambda step: None,
) -> MixedSolution:
    """Returns the partition with the fewest bytes found in about `budget` seconds.

    shares: of the work, by part, in any unit, for devices that differ in speed; starts: tiles of further
    plans to start from, by name; clock: the clock of a larger search, which then gives the budget.
    """
    if parts < 1:
        raise InputError(f"a graph cannot have {parts} parts: ask for one or more.")
    part_shares = np.ones(parts) if shares is None else np.asarray(shares, np.float64)
    if len(part_shares) != parts or not (part_shares > 0).all():
        raise InputError(f"shares are {list(part_shares)}: give {parts} numbers above 0.")
    problem = MixedProblem(graph, part_shares / part_shares.sum(), epsilon)
    problem.warm_up()
    clock = clock or Clock(budget)
    best: MixedCandidate | None = None
    with suppress(OutOfTime):
        for candidate in problem.candidates(clock, seed, starts or {}, on_progress):
            if best is None or candidate.rank < best.rank:
                best = candidate
    assert best is not None, "all parts on one device is a plan"
    return MixedSolution(
        best.tiles, best.volume, best.bytes, tuple(best.work), best.imbalance, clock.seconds,
        best.name, () if best.state is None else choices(problem.blocks, best.state),
    )  # fmt: skip


def choices(blocks: MixedBlocks, state: MixedState) -> tuple[SplitChoice, ...]:
    """Returns a state in readable form, by block."""
    return tuple(
        SplitChoice(block.name, block.axes[a], tuple(int(units) for units in row))
        for block, a, row in zip(blocks.blocks, state.axis, state.x, strict=True)
    )


class MixedCandidate(NamedTuple):
    """A plan with its bytes and its balance."""

    rank: tuple[float, int]  # imbalance above 1 + epsilon, then bytes; the least is best
    name: str  # of the start, baseline or given plan that led to it
    tiles: Tiles
    bytes: Mapping[str, int]  # that cross devices in a step, by purpose
    work: list[int]  # FLOPs of a forward, by part
    imbalance: float  # the largest ratio of a part's work to its share of all work
    state: MixedState | None  # None: a baseline or a given plan

    @property
    def volume(self) -> int:
        """The bytes that cross devices in a step."""
        return self.rank[1]


class MixedProblem:
    """A graph, its compressed model, and the required balance; shares: of the work, by part, sum 1."""

    def __init__(self, graph: Graph, shares: Array, epsilon: float) -> None:
        self.graph, self.shares, self.epsilon = graph, shares, epsilon
        self.parts = len(shares)
        self.blocks = build_blocks(graph)
        self.model: MixedModel = build_mixed_model(self.blocks)
        self.max_work = (1 + epsilon) * float(self.model.work.sum()) * shares

    def candidates(
        self,
        clock: Clock,
        seed: int,
        given_plans: Mapping[str, Mapping[str, Tiling]],
        on_progress: OnProgress,
    ) -> Iterator[MixedCandidate]:
        """Yields the basic starts, baselines and given plans, then the best of each annealing round."""
        starts = basic_starts(self.blocks, self.model, self.shares)
        # The first start is a plan in any case: it is lowered without a look at the clock.
        for number, (name, state) in enumerate(starts.items()):
            yield from self._state_candidate(name, state, clock.look if number else lambda: None)
        # Any cluster of equal devices will do: the tiles of baselines do not depend on the kind of device.
        equal_devices = cluster(f"p100:1x{self.parts}")
        for name, tiles in {
            **applicable_baselines(self.graph, equal_devices),
            **given_plans,
        }.items():
            nearest_state = state_of_tiles(self.blocks, tiles, self.parts)
            if nearest_state is not None:
                starts[name] = nearest_state
            yield from self._candidate(name, dict(tiles), None, clock.look)
        if self.parts == 1 or not self.model.work.sum():
            return
        search_inputs = self.blocks, self.model, self.max_work
        for name, state in annealing_rounds(*search_inputs, starts, clock, seed, on_progress):
            yield from self._state_candidate(
                name, normalize_state(self.blocks, state, self.shares), clock.look
            )

    def _state_candidate(
        self, name: str, state: MixedState, look: Callable[[], None]
    ) -> Iterator[MixedCandidate]:
        """Yields the candidate of a state, as _candidate does."""
        return self._candidate(name, tiles_of(self.blocks, self.model, state), state, look)

    def _candidate(
        self, name: str, tiles: Tiles, state: MixedState | None, look: Callable[[], None]
    ) -> Iterator[MixedCandidate]:
        """Yields the plan with its bytes and balance, or nothing if it cannot be lowered."""
        try:
            # bn="local": batch norm statistics of each tile on its own, so they are not sent
            program = lower(self.graph, Plan(tiles, self.parts, bn="local"), look=look)
        except InputError:
            return
        purpose_bytes = bytes_by_purpose(program)
        work = self.blocks.work(tiles, self.parts)
        total = sum(work) or 1
        imbalance = max(w / (total * s) for w, s in zip(work, self.shares, strict=True))
        excess = max(0.0, imbalance - (1 + self.epsilon) - 1e-9)
        rank = (excess, sum(purpose_bytes.values()))
        yield MixedCandidate(rank, name, tiles, purpose_bytes, work, imbalance, state)

    def warm_up(self) -> None:
        """Anneals one step, so that JIT compilation does not count as search time."""
        start = basic_starts(self.blocks, self.model, self.shares)["sample"]
        # A mask [block, axis] of the axes that are allowed
        all_axes = np.ones(self.model.letter.shape, np.bool_)
        anneal(
            self.model,
            start.axis,
            start.x,
            self.max_work,
            all_axes,
            CoolingSchedule(1, 1.0, 1.0, 1.0),  # one step
            0,  # seed
        )
