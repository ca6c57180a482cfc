"""The examples in the README and in docstrings run, and the README shows what they print."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import pathlib
import re

import pytest

README = pathlib.Path(__file__).parents[1] / "README.md"
MODULES = [
    "graph.box", "graph.space", "graph.capture", "graph.ops.reshape", "plans.tiling",
    "searches.configurations", "searches.baselines.filters", "searches.pins", "searches.plan_space",
]  # fmt: skip


def test_the_readme_runs() -> None:
    text = README.read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.S))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    shown = re.findall(r"^    (\d \| .*)$", text, re.M)
    assert len(shown) == 4
    assert printed.getvalue().splitlines()[:4] == shown


def test_design_says_where_everything_lives() -> None:
    """Every folder of the package has a line in the list, and the list has no others."""
    text = (README.parent / "docs" / "design.md").read_text()
    listed = text.split("    src/raddle/\n")[1].split("    tests/ ")[0]
    named = set(re.findall(r"^      ([a-z]+)/ ", listed, re.M))
    package = README.parent / "src" / "raddle"
    assert named == {path.parent.name for path in package.glob("*/__init__.py")}


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"raddle.{name}"))
    assert result.attempted
    assert not result.failed
