"""Writes the phrases that explanations share: durations, shares, lists, and changes of the bytes sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from raddle.reports.units import (
    bytes_text,
    plural,
    seconds_text,
)

MAX_ROWS = 12  # rows of a table that are shown; the others are only counted
NEGLIGIBLE = 0.01  # less than this share of all bytes, or of the critical path, is not mentioned


def heading(result: Mapping[str, Any]) -> str:
    """Return one line about a plan: model, batch, features of a pipeline, method, cluster.

    result: of `explain_plan` or `explain_op` in raddle.searches.explanation.
    """
    extra = [
        *([f"{result['microbatches']} micro-batches"] if result["microbatches"] > 1 else []),
        *([result["schedule"]["name"]] if result.get("schedule") else []),
        *([f"{plural(result['recompute'], 'recomputed block')}"] if result["recompute"] else []),
        *(["split backward"] if result["split_backward"] else []),
    ]
    return ", ".join(
        [
            f"{result['model']}",
            f"batch {result['batch']}",
            *extra,
            f"{result['method'] or 'a plan'} on {result['cluster']}",
        ]
    )


def has_comparison(result: Mapping[str, Any]) -> bool:
    """Return whether there is a data-parallel plan, other than this one, to compare with."""
    return result["data"] is not None and not result["data"]["same"]


def sent_changes(old: Mapping[str, int], new: Mapping[str, int]) -> Iterator[str]:
    """Yield phrases on what the new plan sends more or less, the largest change first.

    old, new: bytes by purpose ("activations", "gradients" of these, "parameters", ...). Negligible changes
    are left out.
    """
    threshold = NEGLIGIBLE * max(sum(old.values()), sum(new.values()))
    changes = {purpose: new[purpose] - old[purpose] for purpose in new}
    if changes["activations"] * changes["gradients"] > 0:  # both more, or both less: one phrase
        both = changes.pop("activations") + changes.pop("gradients")
        changes["activations and their gradients"] = both
    for purpose in sorted(changes, key=lambda p: -abs(changes[p])):
        change = changes[purpose]
        if abs(change) > threshold:
            verb = "synchronises" if purpose == "parameters" else "sends"
            of = "" if purpose == "parameters" else f" of {purpose}"
            yield f"{verb} {bytes_text(abs(change))}{of} {more_or_less(change)}"


def ms_text(ms: float) -> str:
    """Return milliseconds as text: 12.34 -> "12.3 ms"."""
    return seconds_text(ms / 1e3)


def signed_ms(ms: float) -> str:
    """Return a difference in milliseconds as text: 12.34 -> "+12.3 ms"."""
    return f"{'-' if ms < 0 else '+'}{ms_text(abs(ms))}"


def percent(share: float) -> str:
    """Return a share as text: 0.034 -> "3 %", 0.004 -> "0.4 %"."""
    percent = 100 * share
    return f"{percent:.1f} %" if 0.05 <= percent < 0.95 else f"{percent:.0f} %"


def more_or_less(change: float) -> str:
    """Return the word for the sign of a change."""
    return "more" if change > 0 else "less"


def join_words(words: Sequence[str]) -> str:
    """Return words as a list in a sentence: ["a", "b", "c"] -> "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def shorten_names(names: str) -> str:
    """Shorten the names of a bucket's parameters: "a, b, c, d" -> "a, b and 2 more"."""
    parts = names.split(", ")
    return names if len(parts) <= 3 else f"{', '.join(parts[:2])} and {len(parts) - 2} more"


def print_remaining(console: Console, count: int) -> None:
    """Print how many of a table's `count` rows are not shown, if any."""
    if count > MAX_ROWS:
        console.print(f"and {count - MAX_ROWS} more")
