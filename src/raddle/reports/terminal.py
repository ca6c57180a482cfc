"""Creates consoles and tables for stdout: coloured at a terminal, plain and unwrapped text when piped."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

PIPED_WIDTH = 10_000  # characters: wide enough that piped tables are never cut or wrapped


def stdout() -> Console:
    """Return a console that writes to stdout."""
    # Names such as "blocks[0]" or ":conv:" are data, not markup or emoji.
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


def new_table(console: Console) -> Table:
    """Return an empty table, with a line below its head if the console is a terminal."""
    return Table(box=SIMPLE if console.is_terminal else None, pad_edge=False)
