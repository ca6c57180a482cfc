"""When buffers take their new values, and which of them this device keeps up to date."""

from __future__ import annotations

from collections.abc import Collection

from raddle.graph.box import Box
from raddle.plans.pipelining import stage_of
from raddle.program.program import Key, Program
from raddle.runtime.actions import Keep
from raddle.runtime.building.pieces import Pieces


class Buffers:
    """The buffers of one device; `written` says which boxes of them are as good as anybody's."""

    def __init__(self, program: Program, device: int, pieces: Pieces) -> None:
        self.program, self.device, self.pieces = program, device, pieces
        self.written: dict[str, list[Box]] = {}

    def keep(self, names: Collection[str], key: Key) -> list[Keep]:
        """Buffers whose new values are among these take them, as far as this device holds them."""
        keep = Keep(key)
        for buffer, value in self.program.graph.updates.items():
            held = self.pieces.held(key, value) if value in names else []
            if not held:
                continue
            ((full, slot),) = self.pieces.lasting[buffer]
            if len(held) == 1 and held[0][0] == full:
                keep.whole.append((slot, held[0][1]))
            else:
                keep.pieces.append((slot, list(held)))
            if self._counts(value):
                self.written[buffer] = [box for box, _ in held]
        return [keep] if keep.whole or keep.pieces else []

    def _counts(self, value: str) -> bool:
        """Replicas keep buffers of their own; those of the first micro-batch's workers are saved."""
        plan = self.program.plan
        if not plan.stages:
            return True
        stage = stage_of(plan)[self.program.producer(value).name]
        first = self.program.variants[0].tiles
        return any(self.device in first[name].devices for name in plan.stages[stage])
