"""Prints the results of `raddle lab`: a table of hosts, and a sentence after `raddle lab down`.

A lab is a set of hosts (network namespaces) on one machine, with a network of limited rate between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from raddle.reports.terminal import new_table, stdout
from raddle.reports.units import bytes_text, plural


def show_hosts(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one line for each host; rows: as `raddle.lab.status.host_rows` returns them.

    "rate" is a text such as "1gbit", "sent" and "received" are bytes. A value is None if an incomplete lab
    lacks it.
    """
    if not rows:
        print("no lab is up: make one with `raddle lab up`.")
        return
    console = stdout()
    table = new_table(console)
    for title in ("lab", "host", "address", "rate", "sent", "received"):
        table.add_column(title, justify="left" if title == "lab" else "right", no_wrap=True)
    for row in rows:
        sent, received = (_bytes(row[key]) for key in ("sent", "received"))
        texts = (row["address"] or "none", row["rate"] or "none")
        table.add_row(row["lab"], str(row["host"]), *texts, sent, received)
    console.print(table)


def show_removed(lab: str, removed: Collection[str], ended: Collection[int]) -> None:
    """Print the result of `raddle lab down`.

    removed: names of network namespaces; ended: ids of the processes that ran in them.
    """
    if removed:
        print(
            f"lab '{lab}': {plural(len(removed), 'namespace')} removed, "
            f"{plural(len(ended), 'program')} ended."
        )
    else:
        print(f"there is no lab '{lab}'.")


def _bytes(count: int | None) -> str:
    """Return a number of bytes as text; "none" if it is missing."""
    return "none" if count is None else bytes_text(count)
