"""The command line: one function a verb, each with a table for people and `--json` for scripts.

torch is imported inside the verbs that need it, so that `raddle --help` answers at once.
"""

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from raddle.errors import InputError

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a traceback is a mistake in raddle: show all of it
    rich_markup_mode=None,
)


def main() -> None:
    """Run the verb; a sentence and exit code 2 for what the user can mend."""
    try:
        app(prog_name="raddle")
    except InputError as error:
        print(f"raddle: {error}", file=sys.stderr)
        sys.exit(2)


@app.callback()
def raddle() -> None:
    """Find the fastest way to train a PyTorch module on a cluster, simulate it and run it."""


@app.command()
def models(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A model of the zoo or file.py:function."),
    ] = None,
    batch: Annotated[int | None, typer.Option(metavar="B", min=1, help="Global batch.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON alone on stdout.")] = False,
) -> None:
    """List the zoo, or show a model layer by layer."""
    from raddle.report import terminal

    if name is None:
        _show(_zoo(), terminal.show_models, as_json=as_json)
    else:
        with terminal.progress(f"capturing {name}"):
            description = _describe(name, batch)
        _show(description, terminal.show_model, as_json=as_json)


def _zoo() -> list[dict[str, str]]:
    from raddle import zoo

    return [{"name": name} for name in zoo.names()]


def _describe(name: str, batch: int | None) -> dict[str, Any]:
    from raddle import zoo
    from raddle.graph.capture import capture
    from raddle.report.models import describe

    w = zoo.load(name, batch=batch)
    graph = capture(w.model, w.inputs, targets=w.targets, loss=w.loss, name=w.name)
    return describe(graph)


def _show(value: T, table: Callable[[T], None], *, as_json: bool) -> None:
    """One piece of data, two faces."""
    if as_json:
        print(json.dumps(value, indent=2))
    else:
        table(value)
