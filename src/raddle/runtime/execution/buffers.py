"""Buffers take their new values: running statistics, say."""

from __future__ import annotations

from raddle.graph.box import Box
from raddle.runtime.actions import UpdateBuffers
from raddle.runtime.execution.store import Store


def update_buffers(store: Store, action: UpdateBuffers) -> None:
    """A buffer is replaced, never written: a segment may have kept it."""
    slots = store.slots
    for buffer, slot in action.full_updates:
        slots[buffer] = slots[slot]
    for buffer, pieces in action.partial_updates:
        new_value = slots[buffer].clone()
        for box, slot in pieces:
            new_value[box.slices_within(Box.full(new_value.shape))] = slots[slot]
        slots[buffer] = new_value
    store.drop(action.dead_slots)
