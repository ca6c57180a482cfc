"""Prints the list of experiments and the result of one at a terminal, for `raddle reproduce`."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from raddle.reports.experiments.markdown import chart_to_table
from raddle.reports.experiments.result import Chart, Drawing, Result, Section, Table, cell_text
from raddle.reports.terminal import new_table, stdout


def show_experiments(experiments: Mapping[str, str]) -> None:
    """Print the experiments; experiments: by name, a sentence about each."""
    console = stdout()
    table = new_table(console)
    table.add_column("experiment", no_wrap=True)
    table.add_column("")
    for name, sentence in experiments.items():
        table.add_row(name, sentence)
    console.print(table)


def show_result(result: Result) -> None:
    """Print a result: its title, its sections, and the machine and duration."""
    console = stdout()
    console.print(result.title, style="bold")
    for section in result.sections:
        _show_section(console, section)
    console.print(f"{result.machine}; {result.seconds:.0f} s")


def _show_section(console: Console, section: Section) -> None:
    """Print a section: its text, tables and drawings; a chart is printed as a table."""
    console.print(f"\n{section.title}", style="bold")
    if section.text:
        console.print(section.text)
    if section.skipped:
        console.print(f"skipped: {section.skipped}", style="yellow")
    for part in section.parts:
        if isinstance(part, Drawing):
            console.print(f"\n{part.title}")
            for line in part.lines:
                console.print(line, no_wrap=True)
        else:
            _show_table(console, chart_to_table(part) if isinstance(part, Chart) else part)
        if part.note:
            console.print(part.note, style="dim")


def _show_table(console: Console, table: Table) -> None:
    """Print a table; the source of a column stands below its name."""
    console.print(f"\n{table.title}")
    drawn = new_table(console)  # of the rich library, which prints it
    for i, column in enumerate(table.columns):
        head = f"{column.name}\n{column.source}" if column.source else column.name
        drawn.add_column(head, justify="right" if i else "left")
    for row in table.rows:
        cells = zip(row, table.columns, strict=True)
        drawn.add_row(*(cell_text(value, column) for value, column in cells))
    console.print(drawn)
