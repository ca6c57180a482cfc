"""Runs the command line in this process: a new process would import torch again, which takes seconds."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from raddle.cli import main as cli


class CommandResult(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def raddle(*args: object) -> CommandResult:
    """Run `raddle ARGS`, and return its exit code and output."""
    out, error, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        patch.setattr(sys, "argv", ["raddle", *map(str, args)])
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
    return CommandResult(code, out.getvalue(), error.getvalue())


def refused(done: CommandResult, sentence: str) -> None:
    """Assert that a command printed one sentence on stderr, and ended with exit code 2."""
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.startswith("raddle: ")
    assert done.stderr.count("\n") == 1
