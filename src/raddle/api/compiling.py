"""What numba compiles on its first use on a machine, so that who waits for it can be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from raddle.searches import compiling as search
from raddle.searches.hypergraph import compiling as partitioners
from raddle.searches.planning import PARTITIONS, SEARCHES

__all__ = ["PARTITIONERS", "SEARCH", "Compiled", "compiled_for"]

SOLVERS = ("coarse", "fine", "mixed")  # ways to partition that are compiled; others only count


class Compiled(NamedTuple):
    """Functions that are compiled together."""

    name: str
    seconds: int  # about
    is_there: Callable[[], bool]
    make: Callable[[], None]


SEARCH = Compiled("the search", 30, search.is_compiled, search.compile_all)
PARTITIONERS = Compiled("the partitioners", 50, partitioners.is_compiled, partitioners.compile_all)


def compiled_for(methods: Sequence[str]) -> list[Compiled]:
    """What methods of plans, or of partitions, need."""
    searched = any(name in SEARCHES for name in methods)
    parted = any(name in (*PARTITIONS, *SOLVERS) for name in methods)
    return [part for part, needed in ((SEARCH, searched), (PARTITIONERS, parted)) if needed]
