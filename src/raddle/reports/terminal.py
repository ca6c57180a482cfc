"""Creates consoles and tables for stdout: coloured at a terminal, plain and unwrapped text when piped."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextvars import ContextVar
from typing import TextIO, TypeVar

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

T = TypeVar("T")

PIPED_WIDTH = 10_000  # characters: wide enough that piped tables are never cut or wrapped
# The file that `stdout` writes to in place of stdout, in the present thread; see `text_of`.
_OUTPUT: ContextVar[TextIO | None] = ContextVar("_OUTPUT", default=None)


def stdout() -> Console:
    """Return a console that writes to stdout."""
    # Names such as "blocks[0]" or ":conv:" are data, not markup or emoji.
    console = Console(markup=False, emoji=False, highlight=False, file=_OUTPUT.get())
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


def text_of(show: Callable[[T], None], value: T) -> str:
    """Return what a function prints on `stdout()`, for the `repr` of a value."""
    file = io.StringIO()
    token = _OUTPUT.set(file)
    try:
        show(value)
    finally:
        _OUTPUT.reset(token)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def new_table(console: Console) -> Table:
    """Return an empty table, with a line below its head if the console is a terminal."""
    return Table(box=SIMPLE if console.is_terminal else None, pad_edge=False)
