"""Replays who holds which activations, partial results and gradients in a micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from raddle.errors import InputError
from raddle.graph.box import Box, covers, disjoint, subtract
from raddle.graph.gradients import (
    gives_gradient,
    graded_inputs,
    graders,
    has_backward,
    trained_parameters,
)
from raddle.graph.graph import Op
from raddle.program.describe import PHASES, Boxes, describe
from raddle.program.messages import Subject
from raddle.program.program import Instruction, Key, Merge, Message, Move, Program, Run, Variant


class Facts:
    """What holds for every micro-batch of a variant of a program."""

    def __init__(self, program: Program, held: Mapping[str, Boxes], variant: Variant) -> None:
        graph, tiles, active = variant.graph, variant.tiles, program.active
        self.program, self.held, self.variant, self.graph = program, held, variant, graph
        self.merges, self.closing = variant.merges, variant.closing
        self.ops = variant.ops
        self.producer = {o: op for op in graph.ops for o in op.outputs}
        self.tiles = {op.name: tiles[op.name].tiles for op in graph.ops}
        self.devices = {op.name: set(tiles[op.name].devices) for op in graph.ops}
        # By value, operators that give it a gradient.
        self.graders = {v: [op.name for op in ops] for v, ops in graders(graph, active).items()}
        self.recomputed = {name for block in program.plan.recompute for name in block}
        self._known: dict[tuple[int, Box], tuple[tuple[Box | None, ...], tuple[Box, ...]]] = {}

    def reads(self, op: Op, box: Box) -> tuple[tuple[Box | None, ...], tuple[Box, ...]]:
        """Regions of operands and boxes of outputs; operators that look alike share their space."""
        key = (id(op.space), box)
        if key not in self._known:
            self._known[key] = op.space.regions(box), op.space.produces(box)
        return self._known[key]

    def phases(self, op: Op) -> str:
        """How an operator has to be run, apart from being recomputed."""
        active = self.program.active
        if not has_backward(op, active):
            return "F"
        weights = trained_parameters(self.graph, op, active)
        if not self.program.plan.split_backward or not weights:
            return "FB"
        return "FBW" if len(graded_inputs(op, active)) > len(weights) else "FW"

    def partial(self, op: Op) -> bool:
        """Whether tiles give partial results."""
        boxes = self.variant.tiles[op.name].boxes
        return bool(op.space.combine) and any(op.space.partial(box) for box in boxes)

    def local(self, op: Op) -> bool:
        """Whether partial results are not merged, because each tile has statistics of its own."""
        return (
            self.program.plan.bn == "local"
            and op.kind == "moments"
            and op.composite == "batch_norm"
        )


def check_micro_batches(program: Program, every: Sequence[Facts]) -> None:
    """Every micro-batch of every step; those with the same instructions are replayed once."""
    groups: dict[Key, list[int]] = {}
    for number, i in enumerate(program.instructions):
        if isinstance(i, Run | Merge) or (isinstance(i, Move) and not i.what.of_parameters):
            groups.setdefault(i.key, []).append(number)
    steps, count = program.plan.steps, program.plan.microbatches
    there = {(key.step, key.micro) for key in groups}
    for step, micro in ((s, m) for s in range(steps) for m in range(count)):
        if (step, micro) not in there:
            raise InputError(f"nothing is run in step {step}, micro-batch {micro}.")
    if len(there) < len(groups):
        raise InputError("a micro-batch runs in two variants: its instructions disagree.")
    passed: list[list[tuple[object, ...]]] = []
    for key, numbers in groups.items():
        place = {number: at for at, number in enumerate(numbers)}
        waits = [
            frozenset(place[d] for d in program.instructions[n].deps if d in place) for n in numbers
        ]
        signature = [
            (key.replica, *_content(program.instructions[n]), w)
            for n, w in zip(numbers, waits, strict=True)
        ]
        if signature not in passed:
            _Replay(every[key.replica], key, numbers, waits).run()
            passed.append(signature)


def _content(i: Instruction) -> tuple[object, ...]:
    """What an instruction does, whenever it does it."""
    if isinstance(i, Run):
        return (i.op, i.phase, i.devices)
    if isinstance(i, Merge):
        return (i.op, i.phase, i.devices, i.cells)
    assert isinstance(i, Move)
    return (i.value, i.what, i.messages)


class _Replay:
    """Who holds which boxes of values and partial results, and which gradients came back."""

    def __init__(
        self, facts: Facts, key: Key, numbers: Sequence[int], waits: Sequence[frozenset[int]]
    ) -> None:
        self.facts, self.key, self.numbers, self.waits = facts, key, numbers, waits
        self.program = facts.program
        self.at = 0
        self.done: dict[tuple[str, str], int] = {}  # operator and phase, or value and message
        self.made: dict[tuple[str, int], list[Box]] = {}  # value, device
        self.got: dict[tuple[str, int], dict[int, list[Box]]] = {}  # and by sender
        # What operators that give gradients read on a device that did not compute it:
        self.needs: dict[str, dict[int, list[Box]]] = {}
        self.back: dict[str, list[Message]] = {}  # gradients that came back
        self.parts: dict[str, list[Message]] = {}  # partial results by operator, as they were sent
        self.part_gradients: dict[str, list[Message]] = {}

    def run(self) -> None:
        for at, number in enumerate(self.numbers):
            self.at = at
            instruction = self.program.instructions[number]
            if isinstance(instruction, Run):
                self._run(instruction)
            elif isinstance(instruction, Merge):
                (self._merge if instruction.phase == "F" else self._unmerge)(instruction)
            elif isinstance(instruction, Move):
                self._move(instruction)
        for op in self.facts.graph.ops:
            for phase in self.facts.phases(op):
                if (op.name, phase) not in self.done:
                    raise InputError(
                        f"'{op.name}' is never run {PHASES[phase]} in step {self.key.step}, "
                        f"micro-batch {self.key.micro}."
                    )

    def _run(self, run: Run) -> None:
        """Forward, forward again, or a part of the backward."""
        if run.phase not in self.facts.phases(self.facts.ops[run.op]) and run.phase != "R":
            self._refuse("the plan has no such part.")
        if run.phase == "F":
            self._forward(run)
        elif run.phase == "R":
            self._again(run)
        else:
            self._backward(run)

    def _again(self, run: Run) -> None:
        """What a recomputed operator reads is still held: values are kept until the backward."""
        if run.op not in self.facts.recomputed:
            self._refuse("the plan keeps its values.")
        self._after_forward(run.op, "F")
        if any((run.op, phase) in self.done for phase in "BW"):
            self._refuse("it comes after the backward that it is for.")
        self._finish(run.op, "R")

    def _refuse(self, reason: str) -> NoReturn:
        number = self.numbers[self.at]
        raise InputError(f"{describe(number, self.program.instructions[number])}: {reason}")

    def _finish(self, name: str, phase: str) -> None:
        if (name, phase) in self.done:
            self._refuse("it is there twice.")
        self.done[name, phase] = self.at

    def _after(self, name: str, phase: str, reason: str) -> None:
        """What this instruction uses has to be there, and waited for where it crosses devices."""
        if (name, phase) not in self.done:
            self._refuse(reason)
        before = self.done[name, phase]
        if before not in self.waits[self.at] and (self._sends(before) or self._sends(self.at)):
            other = self.numbers[before]
            what = describe(other, self.program.instructions[other])
            self._refuse(f"it does not wait for {what}.")

    def _sends(self, at: int) -> bool:
        """Whether links do it: what a device computes comes in order without being waited for."""
        return isinstance(self.program.instructions[self.numbers[at]], Move)

    def _arrived(self, name: str, what: str) -> None:
        """Where messages brought something, they have to be waited for."""
        parts = [w for n, w in self.done if n == name and (w == what or w.startswith(f"{what} "))]
        for part in parts:
            self._after(name, part, "")

    # -- forward ----------------------------------------------------------------------------------

    def _forward(self, run: Run) -> None:
        op, active = self.facts.ops[run.op], self.program.active
        left = self.facts.devices[op.name] - set(run.devices)
        if left:
            self._refuse(f"it leaves out device {min(left)}, which has a tile of it.")
        if self.facts.partial(op) and op.name not in self.facts.merges:
            self._check_local(op)
        for name in op.inputs:
            self._arrived(name, "activation")
        for tile in self.facts.tiles[op.name]:
            regions, outs = self.facts.reads(op, tile.box)
            for name, region in zip(op.inputs, regions, strict=True):
                if region is not None:
                    self._read(op, name, region, tile.device, gives_gradient(op, name, active))
            if op.name not in self.facts.merges:
                for o, out in zip(op.outputs, outs, strict=True):
                    self.made.setdefault((o, tile.device), []).append(out)
        self._finish(op.name, "F")

    def _check_local(self, op: Op) -> None:
        if not self.facts.local(op):
            self._refuse("its tiles give partial results, which nothing merges.")
        for device in self.facts.devices[op.name]:
            tiles = [t.box for t in self.facts.tiles[op.name] if t.device == device]
            if not disjoint([self.facts.reads(op, box)[1][0] for box in tiles]):
                self._refuse(
                    f"device {device} computes several local statistics of the same channels, and "
                    "nothing says which of them counts: give it one tile."
                )

    def _read(self, op: Op, name: str, region: Box, device: int, graded: bool) -> None:
        role = self.facts.graph.values[name].role
        if role not in ("op", "parameter"):
            return  # inputs, buffers and constants are there from the start
        if role == "parameter":
            held = self.facts.held.get(name, {}).get(device, ())
        else:
            held = self.made.get((name, device), ())
        if region in held:
            return
        missing = subtract(region, held)
        if missing and graded and role == "op":
            needs = self.needs.setdefault(name, {}).setdefault(device, [])
            for box in missing:
                needs += subtract(box, needs)
        missing = less(missing, self._received(name, device))
        if missing:
            self._refuse(
                f"device {device} has no {missing[0]} of '{name}', which its tile of '{op.name}' reads: "
                "it was neither computed nor received there before."
            )

    def _received(self, name: str, device: int) -> list[Box]:
        return [box for boxes in self.got.get((name, device), {}).values() for box in boxes]

    def _merge(self, merge: Merge) -> None:
        self._after(merge.op, "F", "it comes before what it merges.")
        self._arrived(merge.op, "partial")
        op, tiles = self.facts.ops[merge.op], self.facts.tiles[merge.op]
        self._check_cells(op, merge)
        parts: dict[tuple[int, int], list[Box]] = {}  # by part and device
        for m in self.parts.get(merge.op, []):
            parts.setdefault((m.part, m.target), []).extend(m.boxes)
        for cell in merge.cells:
            for device in cell.devices:
                for part in cell.parts:
                    here = tiles[part].device == device
                    if not here and not covers(parts.get((part, device), []), cell.box):
                        self._refuse(f"device {device} lacks part {part} of {cell.box}.")
                for o in op.outputs:
                    self.made.setdefault((o, device), []).append(cell.box)
        self._finish(op.name, "merge F")

    def _check_cells(self, op: Op, merge: Merge) -> None:
        """Cells cover the output once, and each is made of every box that adds to it, once."""
        tiles = self.facts.tiles[op.name]
        outs = {tile.box: op.space.produces(tile.box)[0] for tile in tiles}
        full = Box.full(self.facts.graph.values[op.outputs[0]].shape)
        boxes = [cell.box for cell in merge.cells]
        if not disjoint(boxes) or not covers(boxes, full):
            self._refuse(f"its cells do not cover {full} once.")
        for cell in merge.cells:
            wrong = [p for p in cell.parts if not 0 <= p < len(tiles)]
            if wrong:
                self._refuse(f"the cell {cell.box} names part {wrong[0]}, which is no tile.")
            found = [tiles[p].box for p in cell.parts]
            lacking = [b for b, o in outs.items() if b not in found and not (o & cell.box).empty]
            if lacking:
                self._refuse(f"the cell {cell.box} lacks the part of tile {lacking[0]}.")
            if len(set(found)) < len(found):
                self._refuse(f"the cell {cell.box} counts a part twice.")

    # -- messages ---------------------------------------------------------------------------------

    def _move(self, move: Move) -> None:
        if not move.what.between_operators:
            return  # ownership.py checks those of parameters, waiting.py who waits for a signal
        whole = move.what.subject is Subject.RESULT
        if move.what.forward:
            (self._activation if whole else self._partial)(move)
        else:
            (self._gradient if whole else self._partial_gradient)(move)

    def _activation(self, move: Move) -> None:
        producer = self.facts.producer[move.value].name
        phase = "merge F" if producer in self.facts.merges else "F"
        self._after(producer, phase, "it comes before what it sends.")
        for m in move.messages:
            # Only whoever computed a value sends it: gradients then take one step back, and not several.
            held = self.made.get((move.value, m.source), [])
            for box in m.boxes:
                missing = [] if box in held else subtract(box, held)
                if missing:
                    self._refuse(f"device {m.source} sends {missing[0]}, which it does not hold.")
            by_sender = self.got.setdefault((move.value, m.target), {})
            by_sender.setdefault(m.source, []).extend(m.boxes)
        for device in {m.target for m in move.messages}:
            self._check_arrivals(move.value, device)
        self._finish(move.value, "activation")

    def _check_arrivals(self, name: str, device: int) -> None:
        arrived = self._received(name, device)
        if not disjoint(arrived):
            self._refuse(f"something of it goes to device {device} twice.")
        for own in self.made.get((name, device), []):
            for box in arrived:
                if not (own & box).empty:
                    self._refuse(f"device {device} is sent {own & box}, which it holds itself.")

    def _partial(self, move: Move) -> None:
        op = self.facts.producer[move.value]
        tiles = self.facts.tiles[op.name]
        self._after(op.name, "F", "it comes before what it sends.")
        by_target: dict[tuple[int, int], list[Box]] = {}
        for m in move.messages:
            if not 0 <= m.part < len(tiles) or tiles[m.part].device != m.source:
                self._refuse(f"device {m.source} sends part {m.part}, which it does not hold.")
            (own, *_) = op.space.produces(tiles[m.part].box)
            for box in m.boxes:
                if not own.holds(box):
                    self._refuse(f"device {m.source} sends {box}, which it does not hold.")
            by_target.setdefault((m.part, m.target), []).extend(m.boxes)
        for (part, target), boxes in by_target.items():
            if not disjoint(boxes):
                self._refuse(f"something of part {part} goes to device {target} twice.")
        self.parts.setdefault(op.name, []).extend(move.messages)
        self._finish(op.name, "partial")

    # -- backward ---------------------------------------------------------------------------------

    def _gradient(self, move: Move) -> None:
        producer = self.facts.producer[move.value].name
        if any((producer, phase) in self.done for phase in ("B", "W", "merge B")):
            self._refuse(f"it comes after the backward of '{producer}', so the gradient is lost.")
        sources = {m.source for m in move.messages}
        for op in self.facts.graders.get(move.value, []):
            if sources & self.facts.devices[op]:
                self._after(op, "B", f"it comes before the backward of '{op}', which adds to it.")
        self.back.setdefault(move.value, []).extend(move.messages)
        # Stages return their parts of a gradient one by one.
        parts = sum(what.startswith("gradient") for name, what in self.done if name == move.value)
        self._finish(move.value, f"gradient {parts}" if parts else "gradient")

    def _check_gradient(self, name: str) -> None:
        """All of a value's gradient has come: where the value went, and from nowhere else."""
        for op in self.facts.graders.get(name, []):
            self._after(op, "B", f"it comes before the backward of '{op}', which it needs.")
        self._arrived(name, "gradient")
        returned: dict[int, list[Box]] = {}
        for m in self.back.get(name, []):
            sent = self.got.get((name, m.source), {}).get(m.target, [])
            wanted = self.needs.get(name, {}).get(m.source, [])
            for box in m.boxes:
                if box not in sent and subtract(box, sent):
                    self._refuse(
                        f"the gradient of {box} of '{name}' comes back from device {m.source} to "
                        f"{m.target} without having been sent there."
                    )
                if box not in wanted and subtract(box, wanted):
                    self._refuse(
                        f"the gradient of {box} of '{name}' comes back from device {m.source}, "
                        "where no operator gives one."
                    )
            returned.setdefault(m.source, []).extend(m.boxes)
        for device, boxes in returned.items():
            if not disjoint(boxes):
                self._refuse(f"a gradient of '{name}' comes back twice from device {device}.")
        for device, boxes in self.needs.get(name, {}).items():
            lost = less(boxes, returned.get(device, []))
            if lost:
                self._refuse(f"the gradient of {lost[0]} of '{name}' on device {device} is lost.")

    def _unmerge(self, merge: Merge) -> None:
        self._after_forward(merge.op, "merge F")
        for name in self.facts.ops[merge.op].outputs:
            if name in self.program.active:
                self._check_gradient(name)
        self._finish(merge.op, "merge B")

    def _after_forward(self, op: str, phase: str) -> None:
        """A backward comes after its forward; that it waits follows from the gradients'."""
        if (op, phase) not in self.done:
            self._refuse("it comes before its forward.")

    def _partial_gradient(self, move: Move) -> None:
        op = self.facts.producer[move.value].name
        self._after(op, "merge B", "it comes before what it sends.")
        if (op, "B") in self.done or (op, "W") in self.done:
            self._refuse(f"it comes after the backward of '{op}', so the gradient is lost.")
        self.part_gradients.setdefault(op, []).extend(move.messages)
        self._finish(op, "partial gradient")

    def _backward(self, run: Run) -> None:
        op = self.facts.ops[run.op]
        left = self.facts.devices[op.name] - set(run.devices)
        if left:
            self._refuse(f"it leaves out device {min(left)}, which has a tile of it.")
        self._after_forward(op.name, "F")
        if op.name in self.facts.recomputed and (op.name, "R") not in self.done:
            self._refuse("its values were not kept and have not been computed again.")
        if op.name in self.facts.merges:
            self._after(op.name, "merge B", "its merged gradient was not taken apart before.")
            self._arrived(op.name, "partial gradient")
            self._check_part_gradients(op.name)
        else:
            for name in op.outputs:
                if name in self.program.active:
                    self._check_gradient(name)
        self._finish(op.name, run.phase)

    def _check_part_gradients(self, op: str) -> None:
        """Gradients of partial results come back as the partial results went, or start at home."""
        if op in self.facts.closing:
            if self.part_gradients.get(op):
                self._refuse("a gradient comes back that every device starts for itself.")
            return
        there = by_way(self.parts.get(op, []))
        back = by_way(
            m._replace(source=m.target, target=m.source) for m in self.part_gradients.get(op, [])
        )
        for way in there.keys() | back.keys():
            lost = less(there.get(way, []), back.get(way, []))
            if lost:
                self._refuse(
                    f"the gradient of {lost[0]} of part {way[2]} on device {way[1]} is lost."
                )
            foreign = less(back.get(way, []), there.get(way, []))
            if foreign or not disjoint(back.get(way, [])):
                self._refuse(
                    f"a gradient of part {way[2]} comes back from device {way[1]} "
                    "without having been sent there, or twice."
                )


def less(boxes: Iterable[Box], others: Sequence[Box]) -> list[Box]:
    return [piece for box in boxes for piece in subtract(box, others)]


def by_way(messages: Iterable[Message]) -> dict[tuple[int, int, int], list[Box]]:
    ways: dict[tuple[int, int, int], list[Box]] = {}
    for m in messages:
        ways.setdefault((m.source, m.target, m.part), []).extend(m.boxes)
    return ways
