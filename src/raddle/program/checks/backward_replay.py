"""Replays the backward of a micro-batch: each device that received a value sends its gradient back, once.

A docstring of a check says what must hold; the program is refused if it does not. A part is a partial
result, with the number of the tile that computed it (program.py). Phases of an operator: F, R (recomputed
forward), B, W; "merge F" and "merge B" are those of its merge. `progress.done` has what was replayed
(replay_progress.py).
"""

from __future__ import annotations

from raddle.graph.box import Box, disjoint, subtract
from raddle.program.checks.boxes import boxes_by_path, subtract_all
from raddle.program.checks.forward_replay import ForwardReplay
from raddle.program.checks.replay_progress import ReplayProgress
from raddle.program.checks.variant_facts import VariantFacts
from raddle.program.program import Merge, Message, Move, Run


class BackwardReplay:
    """The gradients that have come back so far.

    facts: what holds for all micro-batches of the variant. progress: what the replay has done so far.
    forward: the replay of the same micro-batch's forward.
    """

    def __init__(
        self, facts: VariantFacts, progress: ReplayProgress, forward: ForwardReplay
    ) -> None:
        self.facts, self.progress, self.forward = facts, progress, forward
        self.returned: dict[str, list[Message]] = {}  # by value, the messages with its gradient
        # By operator, the messages with the gradients of its partial results.
        self.part_gradients: dict[str, list[Message]] = {}

    def replay_gradient(self, move: Move) -> None:
        """Replays a move of a gradient, between the backwards of the value's readers and its producer."""
        producer = self.facts.producer[move.value].name
        if any((producer, phase) in self.progress.done for phase in ("B", "W", "merge B")):
            self.progress.refuse(
                f"it comes after the backward of '{producer}', so the gradient is lost."
            )
        sources = {m.source for m in move.messages}
        for op in self.facts.contributors.get(move.value, []):
            if sources & self.facts.devices[op]:
                self.progress.require_done(
                    op, "B", f"it comes before the backward of '{op}', which adds to it."
                )
        self.returned.setdefault(move.value, []).extend(move.messages)
        # Each pipeline stage sends its contribution to a gradient in a separate move.
        earlier_moves = sum(
            phase.startswith("gradient") for name, phase in self.progress.done if name == move.value
        )
        phase = f"gradient {earlier_moves}" if earlier_moves else "gradient"
        self.progress.mark_done(move.value, phase)

    def _check_gradient(self, name: str) -> None:
        """Checks that the gradient of a value is complete: all devices that read the value sent it back."""
        for op in self.facts.contributors.get(name, []):
            self.progress.require_done(
                op, "B", f"it comes before the backward of '{op}', which it needs."
            )
        self.progress.require_messages(name, "gradient")
        returned_by_device: dict[int, list[Box]] = {}
        for m in self.returned.get(name, []):
            # What m.target sent to m.source forward, and what m.source reads of it with a gradient.
            sent = self.forward.received.get((name, m.source), {}).get(m.target, [])
            wanted = self.forward.remote_reads.get(name, {}).get(m.source, [])
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
            returned_by_device.setdefault(m.source, []).extend(m.boxes)
        for device, boxes in returned_by_device.items():
            if not disjoint(boxes):
                self.progress.refuse(
                    f"a gradient of '{name}' comes back twice from device {device}."
                )
        for device, boxes in self.forward.remote_reads.get(name, {}).items():
            lost = subtract_all(boxes, returned_by_device.get(device, []))
            if lost:
                self.progress.refuse(
                    f"the gradient of {lost[0]} of '{name}' on device {device} is lost."
                )

    def replay_unmerge(self, merge: Merge) -> None:
        """Replays the backward of a merge, which needs the complete gradient of the merged result."""
        self.progress.require_forward(merge.op, "merge F")
        for name in self.facts.ops[merge.op].outputs:
            if name in self.facts.program.active:
                self._check_gradient(name)
        self.progress.mark_done(merge.op, "merge B")

    def replay_partial_gradient(self, move: Move) -> None:
        """Replays a move of gradients of partial results: between the backwards of merge and operator."""
        op = self.facts.producer[move.value].name
        self.progress.require_done(op, "merge B", "it comes before what it sends.")
        if (op, "B") in self.progress.done or (op, "W") in self.progress.done:
            self.progress.refuse(f"it comes after the backward of '{op}', so the gradient is lost.")
        self.part_gradients.setdefault(op, []).extend(move.messages)
        self.progress.mark_done(op, "partial gradient")

    def replay_run(self, run: Run) -> None:
        """Replays the backward of an operator (B or W); it needs its forward and its outputs' gradients."""
        op = self.facts.ops[run.op]
        missing_devices = self.facts.devices[op.name] - set(run.devices)
        if missing_devices:
            self.progress.refuse(
                f"it leaves out device {min(missing_devices)}, which has a tile of it."
            )
        self.progress.require_forward(op.name, "F")
        if op.name in self.facts.recomputed and (op.name, "R") not in self.progress.done:
            self.progress.refuse(
                "its values were not saved for backward and have not been recomputed."
            )
        if op.name in self.facts.merges:
            self.progress.require_done(
                op.name, "merge B", "its merged gradient was not taken apart before."
            )
            self.progress.require_messages(op.name, "partial gradient")
            self._check_part_gradients(op.name)
        else:
            for name in op.outputs:
                if name in self.facts.program.active:
                    self._check_gradient(name)
        self.progress.mark_done(op.name, run.phase)

    def _check_part_gradients(self, op: str) -> None:
        """Gradients of partial results have come back on the paths of the partial results.

        A path is the source, the target and the part of a message. If the loss is replicated, each device
        computes the gradients of its own parts (replicated_loss.py), and none comes back.
        """
        if op in self.facts.replicated_loss_ops:
            if self.part_gradients.get(op):
                self.progress.refuse("a gradient comes back that every device starts for itself.")
            return
        sent = boxes_by_path(self.forward.sent_parts.get(op, []))
        # By the path of the partial result: source and target of a message back are exchanged.
        came_back = boxes_by_path(
            m._replace(source=m.target, target=m.source) for m in self.part_gradients.get(op, [])
        )
        for path in sent.keys() | came_back.keys():
            lost = subtract_all(sent.get(path, []), came_back.get(path, []))
            if lost:
                self.progress.refuse(
                    f"the gradient of {lost[0]} of part {path[2]} on device {path[1]} is lost."
                )
            foreign = subtract_all(came_back.get(path, []), sent.get(path, []))
            if foreign or not disjoint(came_back.get(path, [])):
                self.progress.refuse(
                    f"a gradient of part {path[2]} comes back from device {path[1]} "
                    "without having been sent there, or twice."
                )
