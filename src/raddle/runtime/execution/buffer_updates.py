"""Carries out UpdateBuffers: module buffers, for example running statistics, get their new values.

The new values are in slots: numbered places for tensors (actions.py).
"""

from __future__ import annotations

from raddle.graph.box import Box
from raddle.runtime.actions import UpdateBuffers
from raddle.runtime.execution.store import Store


def update_buffers(store: Store, action: UpdateBuffers) -> None:
    """Replaces buffers by new tensors. They are not written in place: autograd may have saved them.

    full_updates: (slot of the buffer, slot of its new value). partial_updates: (slot of the buffer, its new
    pieces as (box within the buffer, slot)). dead_slots: slots that no later action reads; they are
    emptied.
    """
    slots = store.slots
    for buffer, slot in action.full_updates:
        slots[buffer] = slots[slot]
    for buffer, pieces in action.partial_updates:
        new_value = slots[buffer].clone()
        for box, slot in pieces:
            new_value[box.slices_within(Box.full(new_value.shape))] = slots[slot]
        slots[buffer] = new_value
    store.drop(action.dead_slots)
