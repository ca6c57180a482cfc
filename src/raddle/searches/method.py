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
    has_stages: ClassVar[bool] = False  # it takes a schedule, stages and micro-batches
    chooses_sync: ClassVar[bool] = False  # with sync "auto", its plan gets the fastest sync kind
    starts_from_others: ClassVar[bool] = False  # in a comparison it starts from the plans before it
    jit_functions: ClassVar[tuple[JitFunctions, ...]] = ()  # numba functions that it needs

    @abstractmethod
    def find(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        """Tiles for all operators and, for a search, how the search went."""


@dataclass(frozen=True)
class Search(Method):
    """A method that searches for about `settings.budget` seconds."""

    splits_sums: ClassVar[bool] = (
        True  # default of settings.reduction: may summed dimensions be split?
    )
    jit_functions: ClassVar[tuple[JitFunctions, ...]] = (EVALUATOR,)

    def find(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        if settings.reduction is None:
            settings = replace(settings, reduction=self.splits_sums)
        with settings.stopwatch.paused_for_jit():
            return self.search(graph, cluster, settings)

    @abstractmethod
    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        """Does the search. `settings.reduction` is True or False here, not None.

        Time that numba takes to compile does not count towards the budget.
        """
