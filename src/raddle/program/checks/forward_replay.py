"""Replays the forward of a micro-batch: which device holds which boxes of values and partial results.

A docstring of a check says what must hold; the program is refused if it does not. A part is a partial
result, with the number of the tile that computed it. A cell is a box merged from parts (program.py). Phases
of an operator: F, R (recomputed forward), B, W; "merge F" is that of its merge. `progress.done` has what
was replayed (replay_progress.py).
"""

from __future__ import annotations

from raddle.graph.box import Box, covers, disjoint, subtract
from raddle.graph.gradients import contributes_gradient
from raddle.graph.graph import Op
from raddle.program.checks.boxes import subtract_all
from raddle.program.checks.replay_progress import ReplayProgress
from raddle.program.checks.variant_facts import VariantFacts
from raddle.program.program import Merge, Message, Move, Run


class ForwardReplay:
    """The boxes that devices have computed and received so far.

    facts: what holds for all micro-batches of the variant. progress: what the replay has done so far.
    """

    def __init__(self, facts: VariantFacts, progress: ReplayProgress) -> None:
        self.facts, self.progress = facts, progress
        self.computed: dict[tuple[str, int], list[Box]] = {}  # by value and device
        # By value and device that received it, then by sender.
        self.received: dict[tuple[str, int], dict[int, list[Box]]] = {}
        # By value and device, the received boxes whose gradient has to come back.
        self.remote_reads: dict[str, dict[int, list[Box]]] = {}
        self.sent_parts: dict[str, list[Message]] = {}  # by operator, messages with partial results

    def replay_recompute(self, run: Run) -> None:
        """Replays a recomputation, which the plan asks for, and which comes between forward and backward.

        Its inputs need no check: the replay keeps all values until the end of the micro-batch.
        """
        if run.op not in self.facts.recomputed:
            self.progress.refuse("the plan does not recompute it.")
        self.progress.require_forward(run.op, "F")
        if any((run.op, phase) in self.progress.done for phase in "BW"):
            self.progress.refuse("it comes after the backward that it is for.")
        self.progress.mark_done(run.op, "R")

    def replay_run(self, run: Run) -> None:
        """Replays the forward of an operator: every tile has to find its inputs on its device."""
        op, active = self.facts.ops[run.op], self.facts.program.active
        missing_devices = self.facts.devices[op.name] - set(run.devices)
        if missing_devices:
            self.progress.refuse(
                f"it leaves out device {min(missing_devices)}, which has a tile of it."
            )
        if self.facts.is_partial(op) and op.name not in self.facts.merges:
            self._check_local(op)
        for name in op.inputs:
            self.progress.require_messages(name, "activation")
        for tile in self.facts.tiles[op.name]:
            regions, output_boxes = self.facts.regions_and_outputs(op, tile.box)
            for name, region in zip(op.inputs, regions, strict=True):
                if region is not None:
                    self._check_read(
                        op, name, region, tile.device, contributes_gradient(op, name, active)
                    )
            if op.name not in self.facts.merges:
                for name, output_box in zip(op.outputs, output_boxes, strict=True):
                    self.computed.setdefault((name, tile.device), []).append(output_box)
        self.progress.mark_done(op.name, "F")

    def _check_local(self, op: Op) -> None:
        """Checks that partial results without a merge are local statistics, one per device and channel.

        With local statistics (`bn: local`), each tile of a batch norm takes its own mean and variance.
        """
        if not self.facts.has_local_statistics(op):
            self.progress.refuse("its tiles give partial results, which nothing merges.")
        for device in self.facts.devices[op.name]:
            tiles = [t.box for t in self.facts.tiles[op.name] if t.device == device]
            if not disjoint([self.facts.regions_and_outputs(op, box)[1][0] for box in tiles]):
                self.progress.refuse(
                    f"device {device} computes several local statistics of the same channels, and "
                    "nothing says which of them counts: give it one tile."
                )

    def _check_read(
        self, op: Op, name: str, region: Box, device: int, gives_gradient: bool
    ) -> None:
        """Checks that a device holds or has received the region that a tile reads.

        gives_gradient: whether the operator contributes to the gradient of the value.
        """
        role = self.facts.graph.values[name].role
        if role not in ("op", "parameter"):
            return  # inputs, buffers and constants are there from the start
        if role == "parameter":
            boxes = self.facts.parameter_boxes.get(name, {}).get(device, ())
        else:
            boxes = self.computed.get((name, device), ())
        if region in boxes:
            return
        missing = subtract(region, boxes)
        if missing and gives_gradient and role == "op":
            needs = self.remote_reads.setdefault(name, {}).setdefault(device, [])
            for box in missing:
                needs += subtract(box, needs)
        missing = subtract_all(missing, self.received_boxes(name, device))
        if missing:
            self.progress.refuse(
                f"device {device} has no {missing[0]} of '{name}', which its tile of '{op.name}' reads: "
                "it was neither computed nor received there before."
            )

    def received_boxes(self, name: str, device: int) -> list[Box]:
        """Returns the boxes of a value that a device has received, from all senders."""
        return [box for boxes in self.received.get((name, device), {}).values() for box in boxes]

    def replay_merge(self, merge: Merge) -> None:
        """Replays a merge: each of its devices has to have all parts of its cells."""
        self.progress.require_done(merge.op, "F", "it comes before what it merges.")
        self.progress.require_messages(merge.op, "partial")
        op, tiles = self.facts.ops[merge.op], self.facts.tiles[merge.op]
        self._check_cells(op, merge)
        parts: dict[tuple[int, int], list[Box]] = {}  # by part and device
        for m in self.sent_parts.get(merge.op, []):
            parts.setdefault((m.part, m.target), []).extend(m.boxes)
        for cell in merge.cells:
            for device in cell.devices:
                for part in cell.parts:
                    computed_here = tiles[part].device == device
                    received = parts.get((part, device), [])
                    if not computed_here and not covers(received, cell.box):
                        self.progress.refuse(f"device {device} lacks part {part} of {cell.box}.")
                for o in op.outputs:
                    self.computed.setdefault((o, device), []).append(cell.box)
        self.progress.mark_done(op.name, "merge F")

    def _check_cells(self, op: Op, merge: Merge) -> None:
        """Checks that cells cover the output once, and that a cell has each of its tiles' parts once.

        Copies of a tile have the same box, and only one of them may count.
        """
        tiles = self.facts.tiles[op.name]
        output_boxes = {tile.box: op.space.output_boxes(tile.box)[0] for tile in tiles}
        full = Box.full(self.facts.graph.values[op.outputs[0]].shape)
        boxes = [cell.box for cell in merge.cells]
        if not disjoint(boxes) or not covers(boxes, full):
            self.progress.refuse(f"its cells do not cover {full} once.")
        for cell in merge.cells:
            wrong = [p for p in cell.parts if not 0 <= p < len(tiles)]
            if wrong:
                self.progress.refuse(
                    f"the cell {cell.box} names part {wrong[0]}, which is no tile."
                )
            part_boxes = [tiles[p].box for p in cell.parts]
            missing = [
                box
                for box, output_box in output_boxes.items()
                if box not in part_boxes and not (output_box & cell.box).empty
            ]
            if missing:
                self.progress.refuse(f"the cell {cell.box} lacks the part of tile {missing[0]}.")
            if len(set(part_boxes)) < len(part_boxes):
                self.progress.refuse(f"the cell {cell.box} counts a part twice.")

    def replay_activation(self, move: Move) -> None:
        """Replays a move of a value: the sources have computed it, and no target gets a box twice."""
        producer = self.facts.producer[move.value].name
        phase = "merge F" if producer in self.facts.merges else "F"
        self.progress.require_done(producer, phase, "it comes before what it sends.")
        for m in move.messages:
            # Only devices that computed a value may send it, so that gradients come back directly to them.
            boxes = self.computed.get((move.value, m.source), [])
            for box in m.boxes:
                missing = [] if box in boxes else subtract(box, boxes)
                if missing:
                    self.progress.refuse(
                        f"device {m.source} sends {missing[0]}, which it does not hold."
                    )
            by_sender = self.received.setdefault((move.value, m.target), {})
            by_sender.setdefault(m.source, []).extend(m.boxes)
        for device in {m.target for m in move.messages}:
            self._check_arrivals(move.value, device)
        self.progress.mark_done(move.value, "activation")

    def _check_arrivals(self, name: str, device: int) -> None:
        """Checks that a device has received no box twice, and none that it computed itself."""
        arrived = self.received_boxes(name, device)
        if not disjoint(arrived):
            self.progress.refuse(f"something of it goes to device {device} twice.")
        for computed in self.computed.get((name, device), []):
            for box in arrived:
                if not (computed & box).empty:
                    self.progress.refuse(
                        f"device {device} is sent {computed & box}, which it holds itself."
                    )

    def replay_partial(self, move: Move) -> None:
        """Replays a move of partial results: the device that computed one sends it to a target once."""
        op = self.facts.producer[move.value]
        tiles = self.facts.tiles[op.name]
        self.progress.require_done(op.name, "F", "it comes before what it sends.")
        by_target: dict[tuple[int, int], list[Box]] = {}  # by part and target
        for m in move.messages:
            if not 0 <= m.part < len(tiles) or tiles[m.part].device != m.source:
                self.progress.refuse(
                    f"device {m.source} sends part {m.part}, which it does not hold."
                )
            (output, *_) = op.space.output_boxes(tiles[m.part].box)
            for box in m.boxes:
                if not output.contains(box):
                    self.progress.refuse(f"device {m.source} sends {box}, which it does not hold.")
            by_target.setdefault((m.part, m.target), []).extend(m.boxes)
        for (part, target), boxes in by_target.items():
            if not disjoint(boxes):
                self.progress.refuse(f"something of part {part} goes to device {target} twice.")
        self.sent_parts.setdefault(op.name, []).extend(move.messages)
        self.progress.mark_done(op.name, "partial")
