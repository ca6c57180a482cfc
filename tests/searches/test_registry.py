"""The registry has one line for each method, and the traits of a method are attributes of its object."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from small_models import small

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.searches import baselines, registry
from raddle.searches.experts.sharding import SYNC_KINDS
from raddle.searches.grids import Tiles
from raddle.searches.hypergraph.partitioner_warmup import PARTITIONERS
from raddle.searches.jit_warmup import EVALUATOR, JitFunctions
from raddle.searches.method import Method, Search
from raddle.searches.registry import METHODS, SEARCHES, jit_functions_of, method_named
from raddle.searches.settings import SearchResult, Settings

SEARCH_NAMES = (
    "optcnn", "flexflow", "hypergraph-coarse", "hypergraph-fine", "hypergraph-mixed", "pipeline", "auto"
)  # fmt: skip


def test_methods_are_listed_in_one_order_and_known_by_their_names() -> None:
    assert list(METHODS) == [*baselines.BASELINES, *SYNC_KINDS, *SEARCHES]
    assert [name for name in SEARCHES if name in SEARCH_NAMES] == [*SEARCH_NAMES]
    assert all(method.name == name for name, method in METHODS.items())


def test_traits_are_those_of_the_methods_that_have_them() -> None:
    def which(trait: str) -> list[str]:
        return [name for name, method in METHODS.items() if getattr(method, trait)]

    assert "pipeline" in which("has_stages")
    assert "auto" in which("chooses_sync")
    assert "auto" in which("starts_from_others")
    assert which("jit_functions") == [*SEARCHES]


def test_an_unknown_name_is_told_what_is_close() -> None:
    with pytest.raises(InputError, match=r"^no method 'optcn': choose optcnn"):
        method_named("optcn")


def test_what_is_compiled_is_named_once_and_before_what_needs_it() -> None:
    assert jit_functions_of(["data", "owt", "partition"]) == []
    assert jit_functions_of(["auto", "hypergraph-fine", "optcnn"]) == [EVALUATOR, PARTITIONERS]


def test_a_cache_is_one_that_has_the_largest_functions(tmp_path: Path) -> None:
    functions = JitFunctions(
        "a toy", 1, str(tmp_path), ("toy.f-*.nbi", "toy.g-*.nbi"), lambda: None
    )
    cache = tmp_path / "__pycache__"
    cache.mkdir()
    (cache / "toy.f-1.nbi").touch()
    assert not functions.is_cached()
    (cache / "toy.g-1.nbi").touch()
    assert functions.is_cached()


class Toy(Search):
    """A search that returns the layer-wise baseline and, as `start`, whether sums may be split."""

    splits_sums = False

    def search(self, graph, cluster, settings):  # type: ignore[no-untyped-def]
        tiles: Tiles = baselines.BASELINES["layerwise"](graph, cluster)
        return SearchResult(tiles, start=f"sums {settings.reduction}", stopped="toy")


@pytest.mark.parametrize(("reduction", "start"), [(None, "sums False"), (True, "sums True")])
def test_a_search_decides_on_sums_where_nobody_else_does(
    reduction: bool | None, start: str
) -> None:
    graph, on = small("mlp-tiny")[1], cluster("p100:1x2")
    assert Toy("toy").find(graph, on, Settings(reduction=reduction)).start == start


def test_a_method_without_a_search_is_none() -> None:
    class Empty(Search):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Empty("empty")  # type: ignore[abstract]
    with pytest.raises(TypeError, match="name"):
        Toy()  # type: ignore[call-arg]
    assert issubclass(Toy, Method)


def test_a_folder_without_a_line_is_an_error_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: method for name, method in METHODS.items() if name != "pipeline"}
    monkeypatch.setattr(registry, "METHODS", few)
    with pytest.raises(AssertionError, match=r"raddle\.searches\.pipeline: no line in"):
        registry._check()


def test_naming_methods_imports_no_compiler() -> None:
    script = "import sys, raddle.searches.registry; print('numba' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("part", jit_functions_of(METHODS), ids=lambda part: part.name)
def test_the_functions_that_a_cache_is_asked_for_exist(part: JitFunctions) -> None:
    for name in part.largest:
        module, _, function = name.removesuffix("-*.nbi").partition(".")
        assert f"def {function}(" in (Path(part.folder) / f"{module}.py").read_text()
