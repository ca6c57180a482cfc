"""Shows progress on stderr: a spinner or a bar for people, lines of JSON for another program.

`progress_bar` and `progress_lines` are context managers that yield a function to report progress with. The
function takes a mapping such as {"step": "owt", "done": 2, "of": 5}: now the step "owt" runs, and 2 of 5
units of work are finished.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

PROGRESS_SECONDS = 0.1  # shortest time between two lines of JSON


@contextmanager
def spinner(message: str) -> Iterator[None]:
    """Show a spinner on stderr while the `with` block runs; show nothing if stderr is not a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(message):
        yield


@contextmanager
def progress_bar(message: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show a bar on stderr with the elapsed and remaining time, and yield the function that moves the bar.

    Nothing is shown if stderr is no terminal.

    message: stands before the bar. "done" and "of" may be left out if the amount of work is unknown.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(message, total=None)

        def update_bar(step: Mapping[str, Any]) -> None:
            text = f"{message}: {step['step']}"
            bar.update(task, description=text, completed=step.get("done"), total=step.get("of"))

        yield update_bar


@contextmanager
def progress_lines(message: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that prints progress as lines of JSON on stderr, for another program.

    message: the value of "progress" in each line; the other keys are those of the mapping. A line within
    PROGRESS_SECONDS of the line before is dropped.
    """
    last = 0.0  # time of the last line

    def print_line(step: Mapping[str, Any]) -> None:
        nonlocal last
        if monotonic() - last >= PROGRESS_SECONDS:
            last = monotonic()
            print(json.dumps({"progress": message, **step}), file=sys.stderr, flush=True)

    yield print_line
