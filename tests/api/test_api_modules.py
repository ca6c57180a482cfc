"""Each module of raddle.api has the names of its `__all__`, and imports no more than it should."""

from __future__ import annotations

import ast
import importlib
import pathlib
import subprocess
import sys

import pytest

from raddle import api

FOLDER = pathlib.Path(api.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
LIGHT = ("defaults", "loading", "clusters", "results")  # imported by verbs that do not need torch
RANKS = ("models", "plans", "programs", "running", "transports")  # imported by ranks of experiments


@pytest.mark.parametrize("name", NAMES)
def test_what_is_offered_is_there(name: str) -> None:
    module = importlib.import_module(f"raddle.api.{name}")
    offered = getattr(module, "__all__", [n for n in vars(module) if n.isupper()])
    assert len(offered) == len(set(offered)) > 0
    assert all(hasattr(module, public_name) for public_name in offered)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_imported_for_others_is_offered(name: str) -> None:
    """A name that a module neither uses nor offers is a mistake; one that it uses need not be offered."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }
    quoted = [  # annotations in quotation marks
        ast.parse(node.value, mode="eval")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and is_expression(node.value)
    ]
    used = {n.id for part in (tree, *quoted) for n in ast.walk(part) if isinstance(n, ast.Name)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert imported <= used | texts


def is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return False
    return True


def test_the_package_lists_its_modules() -> None:
    listed = set((api.__doc__ or "").replace("\n", " ").split())
    assert [name for name in NAMES if name not in listed] == []


def imported(names: tuple[str, ...]) -> set[str]:
    """Return the packages that a fresh interpreter imports with these modules."""
    script = f"import sys\nfor name in {names}:\n    __import__('raddle.api.' + name)\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_verbs_that_need_no_torch_do_not_wait_for_it() -> None:
    assert not {"torch", "numba", "numpy"} & imported(LIGHT)


def test_a_rank_waits_for_no_compiler() -> None:
    assert "numba" not in imported(RANKS)
