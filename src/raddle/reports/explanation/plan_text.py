"""Prints the result of `raddle explain PLAN`: sentences, then the tables that their numbers come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from raddle.reports.explanation.phrases import (
    MAX_ROWS,
    has_comparison,
    heading,
    ms_text,
    percent,
    print_remaining,
    shorten_names,
)
from raddle.reports.explanation.sentences import sentences
from raddle.reports.terminal import new_table, stdout
from raddle.reports.units import (
    bytes_text,
    plural,
)

STOP_REASONS = {  # why a search ended, by the name in a plan file
    "budget": "its time was over",
    "proposals": "it had made as many proposals as it may",
    "no improvement": "nothing had become faster for long",
    "interrupt": "it was interrupted",
    "optimum": "the plan is the optimum for OptCNN's tables of costs",
    # Too many devices for proposals: the result is the best of the plans that a search starts from.
    "starts": "there are too many devices to improve the plan further",
    "candidates": "it had timed all its candidates",  # a search over pipelines
}
# Keys of "average": milliseconds of a step, averaged over the devices.
AVERAGES = {"compute_ms": "computing", "exposed_ms": "waiting for data", "idle_ms": "idle"}


def show_plan(result: Mapping[str, Any]) -> None:
    """Print the result of `raddle.searches.explanation.explain_plan.explain_plan`."""
    console = stdout()
    console.print(heading(result), style="bold")
    for sentence in sentences(result):
        console.print(sentence)
    console.print()
    console.print(_comparison_table(console, result))
    console.print()
    console.print(_path_table(console, result["path"]))
    if result["search"] is not None:
        console.print()
        _show_search(console, result["search"])


def _comparison_table(console: Console, result: Mapping[str, Any]) -> Table:
    """Return a table with a row for each metric: this plan next to data parallelism (the two sides)."""
    sides = [result["plan"]]
    if has_comparison(result):
        sides.append(result["data"])
    table = new_table(console)
    table.add_column("", no_wrap=True)
    for title in ("this plan", "data parallel")[: len(sides)]:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_row("step", *(ms_text(side["step_ms"]) for side in sides))
    for key, title in AVERAGES.items():
        table.add_row(f"{title}, average", *(ms_text(side["average"][key]) for side in sides))
    for purpose in result["plan"]["bytes"]:
        amounts = [side["bytes"][purpose] for side in sides]
        title = "synchronising parameters" if purpose == "parameters" else f"sent, {purpose}"
        if any(amounts):
            table.add_row(title, *map(bytes_text, amounts))
    table.add_row("sent in all", *(bytes_text(side["comm_bytes"]) for side in sides))
    table.add_row("peak memory", *(bytes_text(side["peak_bytes"]) for side in sides))
    table.add_row("communicators per rank", *(str(side["communicators"]) for side in sides))
    return table


def _path_table(console: Console, path: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the operators and parameters that take longest on the critical path."""
    table = new_table(console)
    table.add_column("longest on the critical path", overflow="fold")
    table.add_column("what", no_wrap=True)
    for title in ("in a step", "share"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in path:
        table.add_row(
            shorten_names(row["name"]), row["what"], ms_text(row["ms"]), percent(row["share"])
        )
    return table


def _show_search(console: Console, search: Mapping[str, Any]) -> None:
    """Print how the search went.

    "tried": the candidates, which are whole plans that the search timed. "start": the name of the candidate
    that led to the plan: either it is the plan, or Markov chains changed it step by step into the plan. A
    proposal is one change that such a chain tried. "searched_as": how the plans that were timed differ from
    the final plan.
    """
    made = "" if search["proposals"] is None else f" with {plural(search['proposals'], 'proposal')}"
    stopped = STOP_REASONS.get(search["stopped"], search["stopped"])
    console.print(
        f"A search found this plan from the candidate '{search['start']}'{made}. The search ended because "
        f"{stopped}."
    )
    if not search["tried"]:
        return
    if search["searched_as"]:
        console.print(f"The times of the search are with {search['searched_as']}.")
    table = new_table(console)
    table.add_column("tried", overflow="fold")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in search["tried"][:MAX_ROWS]:
        table.add_row(row["name"], ms_text(row["step_ms"]), _verdict(row, search["memory_bytes"]))
    console.print(table)
    print_remaining(console, len(search["tried"]))


def _verdict(row: Mapping[str, Any], memory: Sequence[int]) -> str:
    """Return whether a candidate of the search was taken, or else why not.

    memory: bytes of the devices with the least and with the most memory. row["difference"]: the
    candidate's step time relative to the plan's; 0.1: 10 % longer. row["simulated"] is False if only
    one step on its own was timed, which may take another time than one in a series of steps.
    """
    if row["taken"]:
        return "taken"
    if row["fits"] is False:
        least, most = map(bytes_text, memory)
        room = least if least == most else f"{least} to {most}"
        needs = (
            ""
            if row["peak_bytes"] is None
            else f": needs {bytes_text(row['peak_bytes'])} of {room}"
        )
        return f"does not fit{needs}"
    if row["difference"] is None:
        return ""
    faster = "faster" if row["difference"] < 0 else "slower"
    share = percent(abs(row["difference"]))
    text = "as fast" if share == "0 %" else f"{share} {faster}"
    return text if row["simulated"] else f"{text}, one step on its own"
