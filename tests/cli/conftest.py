"""A plan file for the tests of several verbs."""

from __future__ import annotations

import pathlib

import pytest
from command_line import raddle


@pytest.fixture(scope="session")
def good_plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A plan file with irregular tiles, as text."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    options = ("--cluster", "p100:1x2", "--method", "channel-incremental", "-o", path)
    done = raddle("plan", "lenet-tiny", *options)
    assert done.returncode == 0, done.stderr
    return path.read_text()


@pytest.fixture
def plan_file(good_plan: str, tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "plan.json"
    path.write_text(good_plan)
    return path
