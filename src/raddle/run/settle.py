"""From a program to the actions of one rank: boxes become slots, dependencies become an order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from raddle.graph.box import Box
from raddle.graph.graph import Op
from raddle.program.program import (
    Instruction,
    Key,
    Merge,
    Message,
    Move,
    Program,
    Reduce,
    Run,
    Update,
    tensors_in,
)
from raddle.program.segments import segments
from raddle.run.actions import (
    Action,
    Actions,
    Arrive,
    Backward,
    Bucket,
    Call,
    Forward,
    Keep,
    Note,
    Part,
    Receive,
    Send,
    Source,
    Step,
    Sum,
)
from raddle.run.code import Code, Of, Piece, Writer
from raddle.run.gathering import gather, overlapping

Slots = list[tuple[Box, int]]  # pieces, with the slots that hold them


def settle(program: Program, device: int, place: torch.device) -> Actions:
    """The actions of a device for one step (the program's first)."""
    return _Settling(program, device, place).actions()


class _Settling:
    def __init__(self, program: Program, device: int, place: torch.device) -> None:
        self.program, self.device, self.place = program, device, place
        self.graph, self.plan = program.graph, program.plan
        self.ops = {op.name: op for op in self.graph.ops}
        self.shapes: list[tuple[int, ...]] = []
        self.sources: list[Source] = []
        self.made: dict[tuple[Key, Of], Slots] = {}
        self.received: dict[tuple[Key, Of], Slots] = {}
        self.lasting: dict[str, Slots] = {}  # parameters, buffers, constants
        self.fed: dict[tuple[Key, str], Slots] = {}  # inputs and seeds
        self.hulls = self._hulls()
        self.segments = segments(program, device)
        self.segment_of = {op.name: n for n, ops in enumerate(self.segments) for op in ops}
        self.codes: dict[object, Code] = {}
        self.calls: dict[tuple[object, Key], Call] = {}
        self.out: list[Action] = []
        self.waiting: dict[int, list[Receive]] = {}  # by instruction
        self.updated: list[int] = []
        self.buckets: list[Bucket] = []
        self.groups: list[tuple[int, ...]] = []
        self.written: dict[str, list[Box]] = {}
        self._place_lasting()

    # -- slots -------------------------------------------------------------------------------------

    def _slot(self, box: Box) -> int:
        self.shapes.append(box.shape)
        return len(self.shapes) - 1

    def _hulls(self) -> dict[str, Box]:
        """The smallest box of every input and frozen value that holds all that this device reads."""
        hulls: dict[str, Box] = {}
        for op in self.graph.ops:
            names = [(i, n) for i, n in enumerate(op.inputs) if self.graph.values[n].role != "op"]
            for tile in self.plan.tiles[op.name].tiles if names else ():
                if tile.device != self.device:
                    continue
                regions = op.space.regions(tile.box)
                for i, name in names:
                    region = regions[i]
                    if region is not None:
                        hull = hulls.get(name, region)
                        lo, hi = map(min, hull.lo, region.lo), map(max, hull.hi, region.hi)
                        hulls[name] = Box(tuple(lo), tuple(hi))
        return hulls

    def _place_lasting(self) -> None:
        for name, shares in self.program.shares.items():
            mine = [s for s in shares if self.device in (*s.devices, s.home)]
            for share in mine:
                slot = self._last(name, "parameter", share.box)
                if name in self.program.active and share.home in (-1, self.device):
                    self.updated.append(slot)
        for value in self.graph.values.values():
            full = Box.full(value.shape)
            if value.role == "buffer":
                self._last(value.name, "buffer", full)
            elif value.role in ("frozen", "constant") and value.name in self.hulls:
                box = full if value.role == "constant" else self.hulls[value.name]
                self._last(value.name, value.role, box)

    def _last(self, name: str, role: str, box: Box) -> int:
        source = Source(name, role, box, self._slot(box))
        self.sources.append(source)
        self.lasting.setdefault(name, []).append((box, source.slot))
        return source.slot

    def _held(self, key: Key, of: Of) -> Slots:
        """All pieces of something that this device holds."""
        role = "op" if isinstance(of, tuple) else self.graph.values[of].role
        if role == "op":
            return self.made.get((key, of), []) + self.received.get((key, of), [])
        assert isinstance(of, str)
        if role in ("input", "seed"):
            if (key, of) not in self.fed:
                box = self.hulls[of] if role == "input" else Box((), ())
                source = Source(of, role, box, self._slot(box), key)
                self.sources.append(source)
                self.fed[key, of] = [(box, source.slot)]
            return self.fed[key, of]
        return self.lasting[of]

    # -- instructions ------------------------------------------------------------------------------

    def actions(self) -> Actions:
        here = [(n, i) for n, i in enumerate(self.program.instructions) if i.key.step == 0]
        waits = self._segment_waits(here)
        tag = 0
        updates = False
        for number, i in here:
            tags = range(tag, tag + _tags(i))
            tag += len(tags)
            if isinstance(i, Reduce):
                self._groups(i)
            if isinstance(i, Update):
                if not updates:
                    # All gradients are there before the first update, so one step of the optimizer
                    # does all; ranks without parameters take part, if only in clipping.
                    updates = True
                    every = (u for _, u in here if isinstance(u, Update))
                    self._arrive(d for u in every for d in u.deps)
                    self.out.append(Step())
                continue
            if self.device not in i.devices:
                continue
            if isinstance(i, Run):
                self._run(i, waits)
            elif isinstance(i, Merge):
                self._merge(i)
            elif isinstance(i, Move):
                self._move(number, i, tags)
            else:
                self._reduce(i, tags[0])
        self._arrive(list(self.waiting))
        self._number_receives()
        outputs = self._outputs()
        self._drop({slot for pieces in outputs.values() for _, slot in pieces})
        return Actions(
            self.device, self.out, len(self.shapes), self.shapes, self.sources, self.updated,
            self.buckets, outputs, self.written, self.groups, self._links(),
        )  # fmt: skip

    def _segment_waits(
        self, here: Sequence[tuple[int, Instruction]]
    ) -> dict[tuple[Key, str, int], set[int]]:
        """What a segment waits for: all that its operators wait for."""
        waits: dict[tuple[Key, str, int], set[int]] = {}
        for _, i in here:
            if isinstance(i, Run) and self.device in i.devices:
                segment = self.segment_of[i.op]
                waits.setdefault((i.key, i.phase, segment), set()).update(i.deps)
        return waits

    def _arrive(self, deps: Iterable[int]) -> None:
        """Waits for messages where they are first needed; buffers take what has come."""
        for d in deps:
            receives = self.waiting.pop(d, [])
            self.out += [Arrive(r) for r in receives]
            if receives and receives[0].what == "activation":
                self._keep({receives[0].value}, receives[0].key)

    def _run(self, run: Run, waits: dict[tuple[Key, str, int], set[int]]) -> None:
        """A segment runs where its first instruction stands; the others are part of it."""
        number = self.segment_of[run.op]
        deps = waits.pop((run.key, run.phase, number), None)
        if deps is None:
            return
        self._arrive(sorted(deps))
        if run.phase == "F":
            self._forward(number, run.key)
            return
        call = self.calls[number, run.key]
        if run.phase == "R":
            self.out.append(Forward(call, again=True))
        else:
            self.out.append(Backward(call, run.phase))

    def _forward(self, number: int, key: Key) -> None:
        ops = self.segments[number]
        if number not in self.codes:
            again = any(ops[0].name in block for block in self.plan.recompute)
            self.codes[number] = self._writer(key).segment(ops, self._wanted(ops), again=again)
        call = self._call(number, key, self.codes[number], _label(ops))
        names = {name for block in self.plan.recompute for name in block}
        call.recompute = call.backward and ops[0].name in names
        call.split = self.plan.split_backward
        self.out.append(Forward(call))
        self._after([op for op in ops if op.name not in self.program.merges], key)

    def _merge(self, merge: Merge) -> None:
        self._arrive(merge.deps)
        where = ("merge", merge.op)
        if merge.phase == "B":
            self.out.append(Backward(self.calls[where, merge.key]))
            return
        op = self.ops[merge.op]
        if where not in self.codes:
            self.codes[where] = self._writer(merge.key).merge(op, merge.cells)
        call = self._call(where, merge.key, self.codes[where], f"merge {op.name}")
        self.out.append(Forward(call))
        self._after([op], merge.key)

    def _writer(self, key: Key) -> Writer:
        def boxes(of: Of) -> list[Box]:
            return [box for box, _ in self._held(key, of)]

        return Writer(self.program, self.device, self.place, boxes, lambda p: self._kind(key, p))

    def _wanted(self, ops: Sequence[Op]) -> set[str]:
        """Values of a segment that are needed outside of it."""
        inside = {op.name for op in ops}
        made = {o for op in ops for o in op.outputs}
        wanted = set(self.graph.updates.values()) | set(self.graph.outputs) | {self.graph.loss}
        for op in self.graph.ops:
            if op.name in self.segment_of and op.name not in inside:
                wanted.update(op.inputs)
        for i in self.program.instructions:
            if i.key.step or i.key.micro:
                break
            if isinstance(i, Move) and any(m.source == self.device for m in i.messages):
                wanted.add(i.value)
        return {name for name in made if name in wanted}

    def _call(self, number: object, key: Key, code: Code, label: str) -> Call:
        call = Call(len(self.calls), label, code, key)
        call.graded = [self._slot_of(key, piece) for piece in code.graded]
        call.weights = [self._slot_of(key, piece) for piece in code.weights]
        call.plain = [self._slot_of(key, piece) for piece in code.plain]
        for of, box in code.results:
            slot = self._slot(box)
            call.results.append(slot)
            name = of if isinstance(of, str) else self.ops[of[0]].outputs[0]
            call.dtypes.append(self.graph.values[name].dtype)
            call.backward |= self._is_active(of)
            self.made.setdefault((key, of), []).append((box, slot))
        call.backward = call.backward and bool(call.graded or call.weights)
        self.calls[number, key] = call
        return call

    def _slot_of(self, key: Key, piece: Piece) -> int:
        return next(slot for box, slot in self._held(key, piece.of) if box == piece.box)

    def _kind(self, key: Key, piece: Piece) -> str:
        """Whether a piece gets a gradient, is of a parameter, or neither."""
        of = piece.of
        if not self._is_active(of):
            return "plain"
        if isinstance(of, str):
            return "weight" if self.graph.values[of].role == "parameter" else "graded"
        own = any(box == piece.box for box, _ in self.made.get((key, of), []))
        # Where the program closes, others start the gradients of their own parts.
        return "graded" if own or of[0] not in self.program.closing else "plain"

    def _is_active(self, of: Of) -> bool:
        """Of partial results: whether any output of the operator is (of moments, only the variance)."""
        names = [of] if isinstance(of, str) else self.ops[of[0]].outputs
        return any(name in self.program.active for name in names)

    def _after(self, ops: Sequence[Op], key: Key) -> None:
        """Buffers take their new value; the loss is noted, and its gradient starts."""
        made = {o for op in ops for o in op.outputs}
        self._keep(made, key)
        if self.graph.loss in made:
            loss = self.graph.loss
            assert loss is not None
            ((_, slot),) = self.made[key, loss]
            first = self.device == self.program.loss_devices[0]
            self.out.append(Note(slot, seeds=first or bool(self.program.closing)))

    def _keep(self, names: set[str], key: Key) -> None:
        keep = Keep()
        for buffer, value in self.graph.updates.items():
            pieces = self._held(key, value) if value in names else []
            if not pieces:
                continue
            ((full, slot),) = self.lasting[buffer]
            if len(pieces) == 1 and pieces[0][0] == full:
                keep.whole.append((slot, pieces[0][1]))
            else:
                keep.pieces.append((slot, list(pieces)))
            self.written[buffer] = [box for box, _ in pieces]
        if keep.whole or keep.pieces:
            self.out.append(keep)

    # -- messages -----------------------------------------------------------------------------------

    def _move(self, number: int, move: Move, tags: Sequence[int]) -> None:
        for message, tag in zip(move.messages, tags, strict=True):
            if message.source == self.device:
                self.out.append(self._send(move, message, tag))
        for message, tag in zip(move.messages, tags, strict=True):
            if message.target == self.device:
                receive = self._receive(move, message, tag)
                self.out.append(receive)
                self.waiting.setdefault(number, []).append(receive)

    def _things(self, move: Move, message: Message) -> list[Of]:
        """What a message carries of each box: a value, or the tensors of a part."""
        if message.part < 0:
            return [move.value]
        op = self.program.producer(move.value).name
        return [(op, message.part, k) for k in range(tensors_in(self.program, move, message))]

    def _send(self, move: Move, message: Message, tag: int) -> Send:
        back = move.what in ("gradient", "partial gradient")
        parts = []
        for box in message.boxes:
            for of in self._things(move, message):
                held = self.received[move.key, of] if back else self._held(move.key, of)
                found = overlapping([b for b, _ in held], box)
                make = gather([held[i][0] for i in found], box)
                parts.append(Part(box.shape, tuple(held[i][1] for i in found), make))
        label = f"{move.what} of {move.value} to {message.target}"
        dtype = self.graph.values[move.value].dtype
        return Send(message.target, tag, move.what, label, parts, dtype)

    def _receive(self, move: Move, message: Message, tag: int) -> Receive:
        parts = []
        for box in message.boxes:
            for of in self._things(move, message):
                parts.append(self._arrival(move, of, box))
        label = f"{move.what} of {move.value} from {message.source}"
        dtype = self.graph.values[move.value].dtype
        elements = sum(box.volume for box in message.boxes) * tensors_in(
            self.program, move, message
        )
        return Receive(
            message.source, tag, move.what, label, parts, dtype, elements, move.value, move.key
        )

    def _arrival(self, move: Move, of: Of, box: Box) -> Part:
        if move.what in ("activation", "partial"):
            slot = self._slot(box)
            self.received.setdefault((move.key, of), []).append((box, slot))
            return Part(box.shape, (slot,))
        if move.what in ("gradient", "partial gradient"):
            own = self.made[move.key, of]
        else:
            assert isinstance(of, str)
            own = self.lasting[of]
        found = overlapping([b for b, _ in own], box)
        commons = [(own[i][0] & box, own[i]) for i in found]
        return Part(
            box.shape,
            tuple(slot for _, (_, slot) in commons),
            places=tuple((c.within(held), c.within(box)) for c, (held, _) in commons),
        )

    def _links(self) -> list[tuple[int, int]]:
        moves = (i for i in self.program.instructions if isinstance(i, Move) and i.key.step == 0)
        return sorted({(m.source, m.target) for i in moves for m in i.messages})

    # -- parameters ----------------------------------------------------------------------------------

    def _groups(self, reduce: Reduce) -> None:
        for shares in reduce.shares:
            self.groups += [s.devices for s in shares if s.devices not in self.groups]

    def _reduce(self, reduce: Reduce, tag: int) -> None:
        together: dict[tuple[tuple[int, ...], torch.dtype], list[tuple[int, int]]] = {}
        for name, shares in zip(reduce.parameters, reduce.shares, strict=True):
            slots = dict(self.lasting[name]) if name in self.lasting else {}
            for share in shares:
                if self.device in share.devices:
                    own = together.setdefault((share.devices, self.graph.values[name].dtype), [])
                    own.append((slots[share.box], share.box.volume))
        label = f"reduce {reduce.parameters[0]}"
        for (devices, dtype), own in together.items():
            elements = sum(volume for _, volume in own)
            self.buckets.append(Bucket(devices, tuple(s for s, _ in own), dtype, elements))
            self.out.append(Sum(len(self.buckets) - 1, tag, label))

    # -- what is dropped when -------------------------------------------------------------------------

    def _number_receives(self) -> None:
        receives = [a for a in self.out if isinstance(a, Receive)]
        for number, receive in enumerate(receives):
            receive.number = number

    def _outputs(self) -> dict[str, Slots]:
        found: dict[str, Slots] = {}
        for name in self.graph.outputs:
            for (key, of), pieces in self.made.items():
                if of == name and key.micro == self.plan.microbatches - 1:
                    found[name] = pieces
        return found

    def _drop(self, kept: set[int]) -> None:
        """A slot is emptied after the last action that reads it."""
        kept |= {s.slot for s in self.sources if s.role not in ("input", "seed")}
        done: set[int] = set(kept)
        for action in reversed(self.out):
            drop = getattr(action, "drop", None)
            if drop is None:
                continue
            for slot in _touched(action):
                if slot not in done:
                    done.add(slot)
                    drop.append(slot)


def _touched(action: Action) -> Iterable[int]:
    """Slots that an action reads or fills."""
    if isinstance(action, Forward):
        call = action.call
        filled = [] if action.again else call.results
        return [*call.graded, *call.plain, *filled]
    if isinstance(action, Send) and action.what in ("activation", "partial"):
        return [slot for part in action.parts for slot in part.slots]
    if isinstance(action, Arrive) and action.receive.what in ("activation", "partial"):
        return [slot for part in action.receive.parts for slot in part.slots]
    if isinstance(action, Keep):
        apart = [slot for _, pieces in action.pieces for _, slot in pieces]
        return [*(slot for _, slot in action.whole), *apart]
    if isinstance(action, Note):
        return [action.slot]
    return []


def _tags(i: Instruction) -> int:
    """How many transfers of an instruction are told apart."""
    return len(i.messages) if isinstance(i, Move) else int(isinstance(i, Reduce))


def _label(ops: Sequence[Op]) -> str:
    return ops[0].name if len(ops) == 1 else f"{ops[0].name} … {ops[-1].name}"
