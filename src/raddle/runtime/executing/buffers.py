"""Buffers take their new values: running statistics, say."""

from __future__ import annotations

from raddle.graph.box import Box
from raddle.runtime.actions import Keep
from raddle.runtime.executing.store import Store


def keep(store: Store, action: Keep) -> None:
    """A buffer is replaced, never written: a segment may have kept it."""
    slots = store.slots
    for buffer, slot in action.whole:
        slots[buffer] = slots[slot]
    for buffer, pieces in action.pieces:
        fresh = slots[buffer].clone()
        for box, slot in pieces:
            fresh[box.within(Box.full(fresh.shape))] = slots[slot]
        slots[buffer] = fresh
    store.drop(action.drop)
