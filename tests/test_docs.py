"""The examples in the README and in docstrings run, and the README shows what they print."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import io
import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

import raddle
from raddle import sync

README = pathlib.Path(__file__).parents[1] / "README.md"
MODULES = [
    "graph.box", "graph.space", "graph.capture", "graph.ops.reshape", "plans.tiling",
    "searches.configurations", "searches.baselines.filters", "searches.pins", "searches.plan_space",
    "clusters.loading", "searches.planning", "runtime.trainer", "api.planning", "api.plan_result",
    "api.loading", "api.comparing", "api.reporting", "api.verifying",
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


# The examples of raddle.sync join a job of one rank, as torchrun would start it.
SYNC = """
import doctest, importlib, sys
for name in ("session", "wrapped_optimizer"):
    results = doctest.testmod(importlib.import_module(f"raddle.sync.{name}"))
    assert results.attempted and not results.failed
"""


def test_docstrings_of_sync() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    subprocess.run([sys.executable, "-c", SYNC], env=os.environ | job, check=True)


def test_public_functions_have_an_example() -> None:
    public = [getattr(raddle, name) for name in raddle.__all__]
    public = [item for item in public if inspect.isfunction(item)]
    public += [getattr(sync, name) for name in sync.__all__]
    assert len(public) >= 12
    assert [item.__name__ for item in public if ">>>" not in (item.__doc__ or "")] == []
