"""Starts the command line: registers the verbs, and prints errors of the user as one sentence.

torch is imported inside the verbs that need it, so that `raddle --help` answers at once.
"""

import sys
import warnings
from typing import Any

import typer

from raddle.cli.calibrate import calibrate
from raddle.cli.capacity import capacity
from raddle.cli.clusters import clusters
from raddle.cli.compare import compare
from raddle.cli.explain import explain
from raddle.cli.export import export
from raddle.cli.lab import app as lab
from raddle.cli.models import models
from raddle.cli.partition import partition
from raddle.cli.plan import plan
from raddle.cli.probe import probe
from raddle.cli.report import report
from raddle.cli.reproduce import reproduce
from raddle.cli.run import run
from raddle.cli.schedule import schedule
from raddle.cli.serve import serve
from raddle.cli.simulate import simulate
from raddle.cli.verify import verify
from raddle.errors import FailedCandidate, InputError

VERBS = (
    models, clusters, probe, calibrate, simulate, plan, compare, capacity, schedule, partition, export,
    explain, report, serve, run, verify, reproduce,
)  # fmt: skip

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a traceback means a bug in raddle: show all of it
    rich_markup_mode=None,
)


@app.callback()
def raddle() -> None:
    """Find the fastest way to train a PyTorch module on a cluster, simulate it and run it."""


for verb in VERBS:
    app.command()(verb)
app.add_typer(lab, name="lab")


def main() -> None:
    """Run the verb; an InputError is printed as one sentence, with exit code 2."""
    warnings.formatwarning = _format_warning
    try:
        app(prog_name="raddle")
    except InputError as error:
        print(f"raddle: {error}", file=sys.stderr)
        sys.exit(2)


_format = warnings.formatwarning  # Python's own function


def _format_warning(
    message: Warning | str, category: type[Warning], *where: Any, **line: Any
) -> str:
    """Return the text of a warning; a search's warning about a failed candidate has no file and line."""
    if issubclass(category, FailedCandidate):
        return f"raddle: {message}\n"
    return _format(message, category, *where, **line)
