"""When buffers take their new values, and which of them this device keeps up to date."""

from __future__ import annotations

from collections.abc import Collection

from raddle.graph.box import Box
from raddle.plans.pipelining import stage_of
from raddle.program.program import Key, Program
from raddle.runtime.actions import UpdateBuffers
from raddle.runtime.builders.slot_table import SlotTable


class BufferUpdateBuilder:
    """The buffers of one device; `written` says which boxes of them are as good as anybody's."""

    def __init__(self, program: Program, device: int, slot_table: SlotTable) -> None:
        self.program, self.device, self.slot_table = program, device, slot_table
        self.current_boxes: dict[str, list[Box]] = {}

    def build(self, names: Collection[str], key: Key) -> list[UpdateBuffers]:
        """Buffers whose new values are among these take them, as far as this device holds them."""
        action = UpdateBuffers(key)
        for buffer, value in self.program.graph.updates.items():
            box_slots = self.slot_table.box_slots(key, value) if value in names else []
            if not box_slots:
                continue
            ((full, slot),) = self.slot_table.persistent[buffer]
            if len(box_slots) == 1 and box_slots[0][0] == full:
                action.full_updates.append((slot, box_slots[0][1]))
            else:
                action.partial_updates.append((slot, list(box_slots)))
            if self._is_saved(value):
                self.current_boxes[buffer] = [box for box, _ in box_slots]
        return [action] if action.full_updates or action.partial_updates else []

    def _is_saved(self, value: str) -> bool:
        """Replicas keep buffers of their own; those of the first micro-batch's workers are saved."""
        plan = self.program.plan
        if not plan.stages:
            return True
        stage = stage_of(plan)[self.program.producer(value).name]
        first_tiles = self.program.variants[0].tiles
        return any(self.device in first_tiles[name].devices for name in plan.stages[stage])
