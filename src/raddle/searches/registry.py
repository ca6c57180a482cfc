"""All methods by name: the baselines, and one line for each search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from pkgutil import iter_modules

from raddle.errors import InputError
from raddle.searches import baselines
from raddle.searches.aliases import ALIASES
from raddle.searches.auto import Auto
from raddle.searches.experts import ShardedData, SplitByDegrees, ThreeD
from raddle.searches.experts.sharding import SYNC_KINDS
from raddle.searches.flexflow import FlexFlow
from raddle.searches.hypergraph import HypergraphSearch
from raddle.searches.jit_warmup import JitFunctions
from raddle.searches.method import Method, Search
from raddle.searches.optcnn import OptCNN
from raddle.searches.pipeline import Pipelines

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        *map(baselines.Baseline, baselines.BASELINES),
        *map(ShardedData, SYNC_KINDS),
        SplitByDegrees("megatron", "megatron"),
        SplitByDegrees("context", "context"),
        ThreeD("3d"),
        OptCNN("optcnn"),
        FlexFlow("flexflow"),
        # The second argument says what is assigned to devices (hypergraph/__init__.py).
        HypergraphSearch("hypergraph-coarse", "coarse"),
        HypergraphSearch("hypergraph-fine", "fine"),
        HypergraphSearch("hypergraph-mixed", "mixed"),
        Pipelines("pipeline"),
        Auto("auto"),
    )
}
SEARCHES = tuple(name for name, method in METHODS.items() if isinstance(method, Search))
NOT_METHODS = ("raddle.searches.explanation",)  # folders of this package without a method


def method_named(name: str) -> Method:
    """Returns the method of this name or alias. Raises InputError with similar names if there is none."""
    if name not in METHODS and name not in ALIASES:
        close = get_close_matches(name, [*METHODS, *ALIASES], n=3, cutoff=0.5) or METHODS
        raise InputError(f"no method '{name}': choose {' or '.join(map(_with_meaning, close))}.")
    return METHODS[ALIASES.get(name, name)]


def canonical_name(name: str) -> str:
    """Returns the name of the method for its name or an alias; raises InputError if there is none."""
    return method_named(name).name


def _with_meaning(name: str) -> str:
    """Returns a name and, of an alias, the method: "zero3 (fsdp)"."""
    return f"{name} ({ALIASES[name]})" if name in ALIASES else name


def jit_functions_of(names: Iterable[str]) -> list[JitFunctions]:
    """Returns the numba functions that the named methods need, each once; unknown names are ignored."""
    methods = [METHODS[name] for name in names if name in METHODS]
    return list(
        dict.fromkeys(functions for method in methods for functions in method.jit_functions)
    )


def _check() -> None:
    """Checks that every method's folder has a line in METHODS; else nobody could use the method."""
    here = iter_modules([str(Path(__file__).parent)], "raddle.searches.")
    folders = {module.name for module in here if module.ispkg}
    listed = {type(method).__module__ for method in METHODS.values()}
    missing = folders - listed - {*NOT_METHODS}
    assert not missing, f"{', '.join(sorted(missing))}: no line in {__name__}"


_check()
