"""What a search is asked for, and what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from raddle.costs.profile import Profile
from raddle.graph.graph import Graph
from raddle.plans.sync import DEFAULT
from raddle.searches.attempts import Failure
from raddle.searches.grids import Tiles
from raddle.searches.pins import Pin
from raddle.searches.stopwatch import Stopwatch

BUDGET = 30.0  # seconds
OnProgress = Callable[[Mapping[str, Any]], None]  # is told of every step, as plain data
AUTO = "auto"  # sync: what is faster, of those that compute the same


@dataclass(frozen=True)
class Settings:
    """How a search goes about it; the plan's own settings are among them, for they have costs."""

    bn: str = "local"
    sync: str = AUTO
    optimizer: str = "sgd"
    profile: Profile | None = None
    reduction: bool | None = None  # whether sums (k) may be split; None: as the method has it
    powers_of_two: bool = True  # degrees are powers of two
    budget: float = BUDGET  # seconds
    proposals: int | None = None  # that a chain makes at most
    seed: int = 0
    epsilon: float = 0.1  # of partitions: the work of a part over the average, less 1
    schedule: str = ""  # that is asked for: of a pipeline, or threaded:4
    stages: int | None = None
    microbatches: int | None = None
    pins: tuple[Pin, ...] = ()
    starts: Mapping[str, Tiles] = field(default_factory=dict)  # that `auto` knows besides its own
    on_progress: OnProgress = field(default=lambda step: None, repr=False)
    stopwatch: Stopwatch = field(default_factory=Stopwatch, repr=False, compare=False)

    @property
    def plan_fields(self) -> dict[str, Any]:
        """What a plan and its evaluation share; which sync is faster is seen when tiles are there."""
        sync = DEFAULT if self.sync == AUTO else self.sync
        return {"bn": self.bn, "sync": sync, "optimizer": self.optimizer}


@dataclass(frozen=True)
class BestSoFar:
    """The best time of a step that was known after some seconds and proposals."""

    seconds: float
    proposals: int
    best_ms: float


@dataclass(frozen=True)
class PipelineResult:
    """A pipeline's part of what was found: the graph of a micro-batch, and how they follow each other."""

    graph: Graph
    microbatches: int
    stages: tuple[tuple[str, ...], ...]
    schedule: str
    recompute: tuple[tuple[str, ...], ...]
    split_backward: bool
    bn: str
    workers: tuple[tuple[int, ...], ...] = ()

    @property
    def plan_fields(self) -> dict[str, Any]:
        """Of a plan."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "graph"}


@dataclass(frozen=True)
class SearchResult:
    """Tiles, where they came from, and how the search went."""

    tiles: Tiles
    start: str = ""  # what the search started from
    proposals: int = 0
    accepted: int = 0
    stopped: str = ""  # by "proposals" or "no improvement" (reproducible), "budget" or "interrupt"
    history: tuple[BestSoFar, ...] = ()
    recompute: int | None = None
    pipeline: PipelineResult | None = None  # where micro-batches follow each other through stages
    sums: Tiles = field(default_factory=dict)  # where partial results are summed, if it matters
    lower_bound_ms: float | None = None
    tried: Sequence[Mapping[str, Any]] = ()  # what else there was, and why it was not taken
    failed: Sequence[Failure] = ()  # candidates that gave no plan


class Clock:
    """Seconds since the search began, and whether they are over."""

    def __init__(self, budget: float, stopwatch: Stopwatch | None = None) -> None:
        self.stopwatch = stopwatch or Stopwatch()
        self.started_at, self.budget = self.stopwatch.seconds, budget

    @property
    def seconds(self) -> float:
        return self.stopwatch.seconds - self.started_at

    @property
    def expired(self) -> bool:
        return self.seconds >= self.budget
