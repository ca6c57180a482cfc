"""Replays a micro-batch's backward: gradients come back from where values went, all of them and once."""

from __future__ import annotations

from raddle.graph.box import Box, disjoint, subtract
from raddle.program.checks.boxes import by_way, less
from raddle.program.checks.forward_replay import Forward
from raddle.program.checks.replay_progress import Progress
from raddle.program.checks.variant_facts import Facts
from raddle.program.program import Merge, Message, Move, Run


class Backward:
    """Which gradients came back so far, of what the forward has sent."""

    def __init__(self, facts: Facts, progress: Progress, forward: Forward) -> None:
        self.facts, self.progress, self.forward = facts, progress, forward
        self.back: dict[str, list[Message]] = {}  # gradients that came back
        self.part_gradients: dict[str, list[Message]] = {}

    def gradient(self, move: Move) -> None:
        producer = self.facts.producer[move.value].name
        if any((producer, phase) in self.progress.done for phase in ("B", "W", "merge B")):
            self.progress.refuse(
                f"it comes after the backward of '{producer}', so the gradient is lost."
            )
        sources = {m.source for m in move.messages}
        for op in self.facts.graders.get(move.value, []):
            if sources & self.facts.devices[op]:
                self.progress.after(
                    op, "B", f"it comes before the backward of '{op}', which adds to it."
                )
        self.back.setdefault(move.value, []).extend(move.messages)
        # Stages return their parts of a gradient one by one.
        parts = sum(
            what.startswith("gradient") for name, what in self.progress.done if name == move.value
        )
        self.progress.finish(move.value, f"gradient {parts}" if parts else "gradient")

    def _check_gradient(self, name: str) -> None:
        """All of a value's gradient has come: where the value went, and from nowhere else."""
        for op in self.facts.graders.get(name, []):
            self.progress.after(op, "B", f"it comes before the backward of '{op}', which it needs.")
        self.progress.arrived(name, "gradient")
        returned: dict[int, list[Box]] = {}
        for m in self.back.get(name, []):
            sent = self.forward.got.get((name, m.source), {}).get(m.target, [])
            wanted = self.forward.needs.get(name, {}).get(m.source, [])
            for box in m.boxes:
                if box not in sent and subtract(box, sent):
                    self.progress.refuse(
                        f"the gradient of {box} of '{name}' comes back from device {m.source} to "
                        f"{m.target} without having been sent there."
                    )
                if box not in wanted and subtract(box, wanted):
                    self.progress.refuse(
                        f"the gradient of {box} of '{name}' comes back from device {m.source}, "
                        "where no operator gives one."
                    )
            returned.setdefault(m.source, []).extend(m.boxes)
        for device, boxes in returned.items():
            if not disjoint(boxes):
                self.progress.refuse(
                    f"a gradient of '{name}' comes back twice from device {device}."
                )
        for device, boxes in self.forward.needs.get(name, {}).items():
            lost = less(boxes, returned.get(device, []))
            if lost:
                self.progress.refuse(
                    f"the gradient of {lost[0]} of '{name}' on device {device} is lost."
                )

    def unmerge(self, merge: Merge) -> None:
        self.progress.after_forward(merge.op, "merge F")
        for name in self.facts.ops[merge.op].outputs:
            if name in self.facts.program.active:
                self._check_gradient(name)
        self.progress.finish(merge.op, "merge B")

    def partial_gradient(self, move: Move) -> None:
        op = self.facts.producer[move.value].name
        self.progress.after(op, "merge B", "it comes before what it sends.")
        if (op, "B") in self.progress.done or (op, "W") in self.progress.done:
            self.progress.refuse(f"it comes after the backward of '{op}', so the gradient is lost.")
        self.part_gradients.setdefault(op, []).extend(move.messages)
        self.progress.finish(op, "partial gradient")

    def run(self, run: Run) -> None:
        op = self.facts.ops[run.op]
        left = self.facts.devices[op.name] - set(run.devices)
        if left:
            self.progress.refuse(f"it leaves out device {min(left)}, which has a tile of it.")
        self.progress.after_forward(op.name, "F")
        if op.name in self.facts.recomputed and (op.name, "R") not in self.progress.done:
            self.progress.refuse("its values were not kept and have not been computed again.")
        if op.name in self.facts.merges:
            self.progress.after(
                op.name, "merge B", "its merged gradient was not taken apart before."
            )
            self.progress.arrived(op.name, "partial gradient")
            self._check_part_gradients(op.name)
        else:
            for name in op.outputs:
                if name in self.facts.program.active:
                    self._check_gradient(name)
        self.progress.finish(op.name, run.phase)

    def _check_part_gradients(self, op: str) -> None:
        """Gradients of partial results come back as the partial results went, or start at home."""
        if op in self.facts.closing:
            if self.part_gradients.get(op):
                self.progress.refuse("a gradient comes back that every device starts for itself.")
            return
        there = by_way(self.forward.parts.get(op, []))
        back = by_way(
            m._replace(source=m.target, target=m.source) for m in self.part_gradients.get(op, [])
        )
        for way in there.keys() | back.keys():
            lost = less(there.get(way, []), back.get(way, []))
            if lost:
                self.progress.refuse(
                    f"the gradient of {lost[0]} of part {way[2]} on device {way[1]} is lost."
                )
            foreign = less(back.get(way, []), there.get(way, []))
            if foreign or not disjoint(back.get(way, [])):
                self.progress.refuse(
                    f"a gradient of part {way[2]} comes back from device {way[1]} "
                    "without having been sent there, or twice."
                )
