"""The base classes of methods: a method is a named way to give every operator of a graph its tiles.

A tile is a part of an operator's work, on one device. What other code must know about a method is an
attribute of the method; no code asks for its name. To add a search, write a folder with a subclass of
`Search` and add a line to registry.py. Modules that need numba are imported inside `search`, so that
listing the methods does not load numba.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.searches.jit_warmup import EVALUATOR, JitFunctions
from raddle.searches.settings import SearchResult, Settings


@dataclass(frozen=True)
class Method(ABC):
    """A baseline or a search, and its traits."""

    name: str
    has_stages: ClassVar[bool] = False  # the method takes a schedule, stages and micro-batches
    chooses_sync: ClassVar[bool] = False  # with sync "auto", its plan gets the fastest sync kind
    sets_sync: ClassVar[bool] = False  # the sync kind is part of what the method is
    # In a comparison of methods, the method starts from the plans of the methods before it.
    starts_from_others: ClassVar[bool] = False
    jit_functions: ClassVar[tuple[JitFunctions, ...]] = ()  # numba functions that the method calls

    @abstractmethod
    def find(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        """Returns tiles for all operators and, for a search, how the search went."""


@dataclass(frozen=True)
class Search(Method):
    """A method that searches for `settings.budget` seconds (stopwatch.py), and looks at the clock."""

    # Default of settings.reduction: whether summed dimensions may be split.
    splits_sums: ClassVar[bool] = True
    jit_functions: ClassVar[tuple[JitFunctions, ...]] = (EVALUATOR,)

    def find(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        if settings.reduction is None:
            settings = replace(settings, reduction=self.splits_sums)
        with settings.stopwatch.paused_for_jit():
            return self.search(graph, cluster, settings.with_running_clock())

    @abstractmethod
    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        """Searches, and returns the tiles of the best plan. `settings.reduction` is not None here.

        `settings.clock` runs: time that numba takes to compile does not count towards the budget.
        """
