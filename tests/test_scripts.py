"""Imports of scripts in bench/ and examples/ exist. The scripts are run by hand: they take too long."""

from __future__ import annotations

import ast
import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
OUR_PACKAGES = ("raddle", "experiments")
SCRIPTS = sorted([*(ROOT / "bench").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_are_there(path: pathlib.Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OUR_PACKAGES:
            for alias in node.names:
                assert is_importable(node.module or "", alias.name), f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in OUR_PACKAGES:
                    importlib.import_module(alias.name)


def is_importable(module: str, name: str) -> bool:
    """Whether a name can be imported from a module or package."""
    if hasattr(importlib.import_module(module), name):
        return True
    return importlib.util.find_spec(f"{module}.{name}") is not None
