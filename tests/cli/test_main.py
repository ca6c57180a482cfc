"""Every verb has a file of its own, and `--help`."""

from __future__ import annotations

import pathlib

import pytest
from command_line import raddle

from raddle.cli import main as cli
from raddle.cli.main import VERBS

NAMES = [verb.__name__ for verb in VERBS]


def test_a_file_a_verb() -> None:
    folder = pathlib.Path(cli.__file__).parent
    shared = {"__init__", "end_signals", "main", "options", "output", "preparation"}
    assert {path.stem for path in folder.glob("*.py")} == {*NAMES, "lab", *shared}
    assert [verb.__module__ for verb in VERBS] == [f"raddle.cli.{name}" for name in NAMES]


@pytest.mark.parametrize("verb", [*NAMES, "lab"])
def test_help(verb: str) -> None:
    done = raddle(verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: raddle {verb} " in done.stdout


def test_a_verb_that_does_not_exist() -> None:
    done = raddle("plam")
    assert (done.returncode, done.stdout) == (2, "")
    assert "plam" in done.stderr
