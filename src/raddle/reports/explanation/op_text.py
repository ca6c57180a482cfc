"""Prints the result of `raddle explain PLAN OP`: how an operator is split, and the cost of other splits.

Operators that are split together form a group; one of them, the anchor, decides the split. A letter is the
name of a dimension that can be split (n: samples, c: channels, ...). "One step on its own" is a step that
does not overlap with the steps before and after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from raddle.reports.explanation.phrases import (
    MAX_ROWS,
    heading,
    join_words,
    more_or_less,
    ms_text,
    percent,
    print_remaining,
    sent_changes,
    signed_ms,
)
from raddle.reports.terminal import new_table, stdout
from raddle.reports.units import (
    bytes_text,
    plural,
)

# By key, in words, how the tiles of a group's member are decided; {}: the name of another member.
DERIVATIONS = {
    "anchor": "the layer that is split",
    "own": "its own letters",
    "after": "what it reads: {}",
    "before": "who reads it: {}",
}
MIN_SHARE = 0.1  # a cause of less than this share of a time difference is not named


def show_op(result: Mapping[str, Any]) -> None:
    """Print the result of `raddle.searches.explanation.explain_op.explain_op`.

    "timed" and "faster" count the other splits that were timed, and those of them that are faster; "base"
    has the metrics of the present split. "group" is None for an operator that depends on no sample: it is
    computed where it is read. "simulated" names the feature of the plan for which the full
    simulation computed the times; it is None if the fast simulation did.
    """
    console = stdout()
    console.print(heading(result), style="bold")
    console.print(f"{result['op']} ({result['kind']}): {result['tiles']}")
    if result["others"]:  # the name that the user gave fits operators of several groups
        count = len(result["others"])
        names = ", ".join(result["others"][:3]) + (f" and {count - 3} more" if count > 3 else "")
        console.print(
            f"The name fits {count + 1} groups; this is the first, the others are {names}."
        )
    if result["group"] is None:
        console.print(f"read by {join_words(result['read_by']) or 'nobody'}")
    else:
        _show_group(console, result["group"])
    if result["alternatives"] is not None:
        console.print()
        _show_alternatives(console, result)
    for note in result["notes"]:
        console.print(f"note: {note}", style="yellow")


def _show_group(console: Console, group: Mapping[str, Any]) -> None:
    """Print the letters that the group can be split by, and how its members follow the anchor."""
    members = group["members"]
    if len(members) > 1:
        console.print(
            f"It is split together with {plural(len(members) - 1, 'other')}; {group['anchor']} "
            f"decides: {group['tiles']}"
        )
    console.print(f"{group['anchor']} is {group['notation']}")
    console.print()
    console.print(_letter_table(console, group))
    if len(members) == 1:
        return
    console.print()
    table = new_table(console)
    for title in ("member", "kind", "follows", "tiles"):
        table.add_column(title, overflow="fold")
    for row in members[:MAX_ROWS]:
        # how: a key of DERIVATIONS; ref: the member that this one follows
        follows = DERIVATIONS[row["how"]].format(row["ref"])
        # row["follows"]: whether the plan gives the member the tiles that follow from the anchor's.
        # A group without a configuration has tiles that no search could choose: then no member follows.
        exception = "" if row["follows"] or group["configuration"] is None else ", but not here"
        table.add_row(row["name"], row["kind"], follows + exception, row["tiles"])
    console.print(table)
    print_remaining(console, len(members))


def _letter_table(console: Console, group: Mapping[str, Any]) -> Table:
    """Return a table with the size and the parts of each letter, and whether it can be split."""
    table = new_table(console)
    table.add_column("letter", no_wrap=True)
    for title in ("size", "parts"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("can be split", overflow="fold")
    for row in group["letters"]:
        can = f"by {row['kind']}" if row["why_not"] is None else f"no: {row['why_not']}"
        # A letter may be one of another member of the group.
        of = "" if row["of"] == group["anchor"] else f", of {row['of']}"
        parts = "" if row["parts"] is None else str(row["parts"])
        table.add_row(row["letter"], str(row["size"]), parts, can + of)
    return table


def _show_alternatives(console: Console, result: Mapping[str, Any]) -> None:
    """Print the table of alternatives (the fastest other splits), and the changes that each would bring.

    result["overlapping"]: steps overlap (no flush), so that times are those of an average step.
    """
    base, rows = result["base"], result["alternatives"]
    step_title = "one step on its own"
    step = f"A step takes {ms_text(result['step_ms'])}, and {ms_text(base['step_ms'])} on its own"
    if result["overlapping"]:
        step_title, step = "a step", f"A step takes {ms_text(base['step_ms'])}, as steps overlap"
    console.print(f"{step}, which is what is compared here. {comparison_sentence(result)}")
    if rows:
        console.print(
            _alternative_table(console, rows, step_title, simulated=bool(result["simulated"]))
        )
    for row in rows:
        changes = ", ".join(describe_changes(base, row)) or "nothing that stands out"
        console.print(f"{signed_ms(row['difference_ms'])} with {row['tiles']}: {changes}")
    if any(row["partial"] for row in rows):  # splits of a summed dimension give partial sums
        console.print("Some split a sum, which optcnn does only with --reduction.")
    for sentence in _exclusions(result["excluded"]):
        console.print(sentence)


def _alternative_table(
    console: Console, rows: Sequence[Mapping[str, Any]], step_title: str, *, simulated: bool
) -> Table:
    """Return a table of alternatives; simulated: the full simulation computed their times and memory."""
    table = new_table(console)
    table.add_column("next best", overflow="fold")
    for title in (step_title, "difference", "", "memory" if simulated else "memory, about"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["tiles"],
            ms_text(row["step_ms"]),
            signed_ms(row["difference_ms"]),
            f"{100 * row['difference']:+.1f} %",
            bytes_text(row["memory_bytes"]),
        )
    return table


def comparison_sentence(result: Mapping[str, Any]) -> str:
    """Return a sentence that compares the present split with its alternatives."""
    if not result["timed"]:
        return "There is no other way to split it here."
    others = plural(result["timed"], "other way")
    first = result["alternatives"][0]
    how = "simulated" if result["simulated"] else "timed"
    start = f"With everything else as it is, {others} to split this group were {how}"
    if result["faster"]:
        best = f"{ms_text(-first['difference_ms'])} ({percent(-first['difference'])})"
        return f"{start}: {result['faster']} would be faster, the best by {best}."
    if not first["difference_ms"]:
        return f"{start}: none is faster, the next best is as fast."
    return f"{start}: none is faster, the next best takes {ms_text(first['difference_ms'])} more."


def describe_changes(base: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Return phrases that say why an alternative is slower or faster: times first, then bytes sent.

    base: the metrics of the present split; row: those of the alternative.
    """
    times = {
        "computing on the busiest device": row["compute_ms"] - base["compute_ms"],
        "messages on the busiest link": row["link_ms"] - base["link_ms"],
    }
    if "average" in row:  # only simulated alternatives have it
        for what, key in {"waiting for data": "exposed_ms", "idle": "idle_ms"}.items():
            times[what] = row["average"][key] - base["average"][key]
    threshold = max(MIN_SHARE * abs(row["difference_ms"]), 1e-6)
    phrases = [
        f"{ms_text(abs(change))} {more_or_less(change)} {what}"
        for what, change in sorted(times.items(), key=lambda item: -abs(item[1]))
        if abs(change) > threshold
    ]
    if "bytes" in row:
        phrases += list(sent_changes(base["bytes"], row["bytes"]))[:2]
    return phrases


def _exclusions(excluded: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about splits that the table leaves out: impossible, too large, or not timed."""
    for row in excluded["refused"]:
        yield f"{row['count']} are impossible, such as {row['example']}: {row['reason']}"
    memory = excluded["memory"]
    if memory is not None:
        difference = memory["difference_ms"]
        how = f"{ms_text(abs(difference))} {'slower' if difference > 0 else 'faster'}"
        yield (
            f"{memory['count']} would not fit: they need about {bytes_text(memory['least_bytes'])} or "
            f"more of {bytes_text(memory['memory_bytes'])}; the fastest, {memory['fastest']}, would be "
            f"{how}."
        )
    if excluded["untimed"]:
        yield f"{excluded['untimed']} more were not timed."
