"""Builds the actions that update module buffers; notes the boxes that this device saves in checkpoints.

A buffer is a tensor that a module registers with register_buffer, for example a running mean.
`graph.updates`: buffer -> the value that is its new content. The slot table knows the slots of the boxes
that this device holds.
"""

from __future__ import annotations

from collections.abc import Collection

from raddle.graph.box import Box
from raddle.plans.pipelining import stage_of
from raddle.program.program import Key, Program
from raddle.runtime.actions import UpdateBuffers
from raddle.runtime.builders.slot_table import SlotTable


class BufferUpdateBuilder:
    """Builds the buffer updates of one device."""

    def __init__(self, program: Program, device: int, slot_table: SlotTable) -> None:
        self.program, self.device, self.slot_table = program, device, slot_table
        self.current_boxes: dict[str, list[Box]] = {}  # buffer -> boxes that this device saves

    def build(self, names: Collection[str], key: Key) -> list[UpdateBuffers]:
        """Returns one action that updates the buffers whose new values are among `names`.

        It uses the boxes of these values that are on this device; the list is empty if there are none.
        key: the step and micro-batch of the new values.
        """
        action = UpdateBuffers(key)
        for buffer, value in self.program.graph.updates.items():  # value: the new content
            box_slots = self.slot_table.box_slots(key, value) if value in names else []
            if not box_slots:
                continue
            ((full_box, slot),) = self.slot_table.persistent[buffer]
            if len(box_slots) == 1 and box_slots[0][0] == full_box:
                action.full_updates.append((slot, box_slots[0][1]))
            else:
                action.partial_updates.append((slot, list(box_slots)))
            if self._is_saved(value):
                self.current_boxes[buffer] = [box for box, _ in box_slots]
        return [action] if action.full_updates or action.partial_updates else []

    def _is_saved(self, value: str) -> bool:
        """Returns whether this device's copy of a buffer is the one that checkpoints save.

        Replicas of a stage have separate buffers; those of the workers that run micro-batch 0 are saved.
        """
        plan = self.program.plan
        if not plan.stages:
            return True
        stage = stage_of(plan)[self.program.producer(value).name]
        first_tiles = self.program.variants[0].tiles  # variant 0 is that of micro-batch 0
        return any(self.device in first_tiles[name].devices for name in plan.stages[stage])
