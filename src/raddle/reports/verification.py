"""Prints the result of `raddle verify`: one row for each check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raddle.reports.terminal import new_table, stdout
from raddle.reports.units import plural


def show_verdict(result: Mapping[str, Any]) -> None:
    """Print the result of `raddle.verification.verify_plan.verify`.

    A check holds if it passes: values deviate by at most the tolerance, numbers of bytes are equal.
    "bn" is the scope of batch-norm statistics: "local" (the samples of a device), "microbatch" or "global".
    "precision" is a sentence about the data type of the comparison.
    """
    console = stdout()
    console.print(
        f"{result['model']}, batch {result['batch']}, {result['method'] or 'a plan'} on "
        f"{plural(result['devices'], 'rank')} ({result['transport']}, {result['dtype']}, "
        f"bn: {result['bn']}), {plural(result['steps'], 'step')}",
        style="bold",
    )
    table = new_table(console)
    table.add_column("what", no_wrap=True)
    table.add_column("worst deviation", justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    table.add_column("holds", no_wrap=True)
    for check in result["checks"]:
        holds = check["holds"]
        style = None if holds else "red"
        texts = (check["what"], _deviation(check["deviation"]), check["where"])
        table.add_row(*texts, "yes" if holds else "NO", style=style)
    if result["checks"]:
        console.print(table)
    console.print(result["precision"])
    for note in result["notes"]:
        console.print(note, style="yellow")
    if result["failure"]:
        console.print(result["failure"], style="red")
    console.print("it holds" if result["holds"] else "it does NOT hold")


def _deviation(value: float | int | None) -> str:
    """Return the text of a deviation.

    An int is bytes. A float is relative or, for the check of the schedule, the seconds by which an action
    began before an action that it must wait for had ended. None stands for NaN or infinity.
    """
    if value is None:
        return "no number"
    return f"{value:,} bytes" if isinstance(value, int) else f"{value:.1e}"
