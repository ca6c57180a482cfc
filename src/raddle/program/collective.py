"""Recognises a set of messages as a collective operation.

A move is an instruction that sends messages; a message has boxes, and a part if these are a partial result:
the number of the tile that computed it, else -1 (program.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from raddle.program.program import Message


def recognise_collective(messages: Sequence[Message]) -> str:
    """Returns the name of the collective that the messages of a move form together; "" for none.

    The names are `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast`, `scatter` and `gather`.
    """
    pairs = {(m.source, m.target) for m in messages}
    sources = {s for s, _ in pairs}
    targets = {t for _, t in pairs}
    if len(pairs) < 2:
        return ""
    if len(sources) == 1:
        return "broadcast" if _all_same_boxes(messages) else "scatter"
    if len(targets) == 1:
        return "gather"
    if sources != targets or len(pairs) != len(sources) * (len(sources) - 1):
        return ""
    # Every source sends the same boxes to all targets.
    if all(len({m.boxes for m in messages if m.source == s}) == 1 for s in sources):
        return "all_gather"
    # All messages have partial results, and a target gets the same boxes from every source.
    if all(m.part >= 0 for m in messages) and all(
        len({m.boxes for m in messages if m.target == t}) == 1 for t in targets
    ):
        return "reduce_scatter"
    return "all_to_all"


def _all_same_boxes(messages: Sequence[Message]) -> bool:
    return len({m.boxes for m in messages}) == 1
