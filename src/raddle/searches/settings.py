"""The settings that a search takes, and the result that it returns.

A start is a plan from which a search begins (starts.py). A proposal is a changed plan that a Markov chain
(flexflow/chain.py) times, and accepts or rejects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from raddle.costs.profile import Profile
from raddle.graph.graph import Graph
from raddle.plans.precision import DEFAULT as DEFAULT_PRECISION
from raddle.plans.sync import DEFAULT
from raddle.searches.attempts import Failure
from raddle.searches.grids import Tiles
from raddle.searches.pins import Pin
from raddle.searches.stopwatch import Clock, Stopwatch

BUDGET = 30.0  # seconds
# Receives progress reports: {"step": text for the user, "done": units that are done, "of": all units, ...}.
# Units differ: seconds of the budget, methods, tiles.
OnProgress = Callable[[Mapping[str, Any]], None]
AUTO = "auto"  # as `sync`: take the fastest of the sync kinds that compute the same result


@dataclass(frozen=True)
class Settings:
    """Options of a search, and those options of the plan on which its predicted time depends."""

    # Samples over which batch norm takes its statistics: "local" (each device's own), "microbatch", or
    # "global" (the whole batch).
    bn: str = "local"
    sync: str = AUTO  # sync kind of the parameters
    precision: str = DEFAULT_PRECISION  # plans/precision.py
    optimizer: str = "sgd"  # plans/optimizers.py
    profile: Profile | None = None  # measured times of operators, if any
    reduction: bool | None = None  # may summed dimensions be split? None: the method decides
    # Split dimensions into powers of two only, and into divisors of the number of devices.
    powers_of_two: bool = True
    budget: float = BUDGET  # seconds
    proposals: int | None = None  # stop after this many proposals of the Markov chains
    seed: int = 0  # of the random numbers of a search
    epsilon: float = 0.1  # hypergraph partitions: allowed imbalance, (work of a part / average) - 1
    schedule: str = ""  # requested by the user: a pipeline's, or "threaded:4" (4 steps at once)
    stages: int | None = None  # requested by the user; None: the method decides
    microbatches: int | None = None  # requested by the user; None: the method decides
    pins: tuple[Pin, ...] = ()  # splits that the user has fixed
    starts: Mapping[str, Tiles] = field(default_factory=dict)  # further starts of `auto`, by name
    on_progress: OnProgress = field(default=lambda step: None, repr=False)
    stopwatch: Stopwatch = field(default_factory=Stopwatch, repr=False, compare=False)
    # The clock of a search that has begun; its parts get it with the settings. None: it begins now.
    clock: Clock | None = field(default=None, repr=False, compare=False)

    @property
    def running_clock(self) -> Clock:
        """The clock of the search, or a new one if none has been started.

        With a number of proposals the clock never expires: equal settings then give equal plans.
        """
        budget = math.inf if self.proposals is not None else self.budget
        return self.clock or Clock(budget, self.stopwatch)

    def with_running_clock(self) -> Settings:
        """Returns the settings with a clock that runs, for all that the search calls."""
        return replace(self, clock=self.running_clock)

    @property
    def plan_fields(self) -> dict[str, Any]:
        """The options that are fields of the plan. If `sync` is "auto", it becomes the default sync kind.

        The fastest sync kind is chosen later, when the tiles are known (choose_sync.py).
        """
        sync = DEFAULT if self.sync == AUTO else self.sync
        return {
            "bn": self.bn, "sync": sync, "precision": self.precision, "optimizer": self.optimizer,
        }  # fmt: skip


@dataclass(frozen=True)
class BestSoFar:
    """A point of a search's history: the best step time after some seconds and proposals."""

    seconds: float
    proposals: int
    best_ms: float  # milliseconds of a step


@dataclass(frozen=True)
class PipelineResult:
    """The part of a search's result that only pipelines have. Its fields are named as those of Plan."""

    graph: Graph  # captured for the batch size of one micro-batch
    microbatches: int
    stages: tuple[tuple[str, ...], ...]  # the operators of each stage
    schedule: str
    recompute: tuple[tuple[str, ...], ...]  # blocks of operators to recompute
    split_backward: bool  # gradients of parameters are computed after those of activations
    bn: str  # statistics of batch norm, see Settings
    workers: tuple[tuple[int, ...], ...] = ()  # the devices of each worker (row of the schedule)

    @property
    def plan_fields(self) -> dict[str, Any]:
        """All fields but the graph, as keyword arguments for a plan."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "graph"}


@dataclass(frozen=True)
class SearchResult:
    """The tiles that a method returns and, for a search, how the search went."""

    tiles: Tiles
    start: str = ""  # name of the start that led to these tiles
    proposals: int = 0  # number of proposals that the Markov chains made
    accepted: int = 0  # number of proposals that they accepted
    # Why the search ended: "proposals", "no improvement", "budget", "interrupt" and others.
    stopped: str = ""
    history: tuple[BestSoFar, ...] = ()  # a point for each improvement of the best time
    recompute: int | None = None  # number of blocks for activation checkpointing
    # The sync kind that belongs to the plan, such as ZeRO where memory is short; "": any will do.
    sync: str = ""
    sync_is_needed: bool = (
        False  # with another one, the plan would be another method's, or would not fit
    )
    pipeline: PipelineResult | None = None  # None: no stages and micro-batches
    # By operator, the devices that merge its partial sums, if the search has chosen them (Plan.sums).
    sums: Tiles = field(default_factory=dict)
    lower_bound_ms: float | None = None
    tried: Sequence[Mapping[str, Any]] = ()  # rows of all candidates, the slower ones too
    failed: Sequence[Failure] = ()  # candidates without a plan
