"""What a method is: a named way to make a plan. Whoever depends on which one it is asks the method itself.

A new search is a folder of its own with a subclass of `Search`, and a line in registry.py. What is compiled
is imported inside of `search`, so that naming methods needs no compiler.
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
    """A baseline or a search, and what others need to know of it."""

    name: str
    has_stages: ClassVar[bool] = False  # it takes a schedule, stages and micro-batches
    chooses_sync: ClassVar[bool] = False  # unless one is asked for, its plan gets the fastest
    starts_from_others: ClassVar[bool] = False  # a comparison tells it what was found before
    jit_functions: ClassVar[tuple[JitFunctions, ...]] = ()  # what is compiled once on a machine

    @abstractmethod
    def find(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        """Tiles for all operators, and, of a search, how it went."""


@dataclass(frozen=True)
class Search(Method):
    """A method that takes about `settings.budget` seconds."""

    splits_sums: ClassVar[bool] = True  # unless settings.reduction says otherwise
    jit_functions: ClassVar[tuple[JitFunctions, ...]] = (EVALUATOR,)

    def find(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        if settings.reduction is None:
            settings = replace(settings, reduction=self.splits_sums)
        with settings.stopwatch.paused_while_compiling():
            return self.search(graph, cluster, settings)

    @abstractmethod
    def search(self, graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
        """What is found; `settings.reduction` is decided, and compiling does not count as searching."""
