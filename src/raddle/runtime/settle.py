"""From a program to the actions of one rank: boxes become slots, dependencies become an order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from raddle.graph.box import Box, hull
from raddle.graph.graph import Op
from raddle.plans.pipelining import is_asynchronous, stage_of
from raddle.program.messages import Content
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
    Variant,
    tensors_in,
)
from raddle.program.segments import segments
from raddle.program.slicing import numbered
from raddle.program.versions import parameters_of
from raddle.runtime.actions import (
    Action,
    Actions,
    Arrive,
    Backward,
    Bucket,
    Call,
    Feed,
    Forward,
    Give,
    Keep,
    Leave,
    Note,
    Part,
    Receive,
    Send,
    Sliced,
    Source,
    Step,
    Sum,
    Whole,
)
from raddle.runtime.answers import Answers
from raddle.runtime.code import Code, Of, Piece, Writer
from raddle.runtime.gathering import gather, overlapping

Slots = list[tuple[Box, int]]  # pieces, with the slots that hold them


def settle(program: Program, device: int, place: torch.device) -> Actions:
    """The actions of a device for one step (the program's first); for all, where steps overlap."""
    return _Settling(program, device, place).actions()


class _Settling:
    def __init__(self, program: Program, device: int, place: torch.device) -> None:
        self.program, self.device, self.place = program, device, place
        self.graph, self.plan = program.graph, program.plan
        self.ops = {op.name: op for op in self.graph.ops}
        self.overlap = is_asynchronous(self.plan)
        self.stages = stage_of(self.plan)
        self.shapes: list[tuple[int, ...]] = []
        self.sources: list[Source] = []
        self.made: dict[tuple[Key, Of], Slots] = {}
        self.received: dict[tuple[Key, Of], Slots] = {}
        self.lasting: dict[str, Slots] = {}  # parameters, buffers, constants
        self.fed: dict[tuple[Key, str], Slots] = {}  # inputs and seeds
        self.source_of: dict[int, Source] = {}  # the same, by slot
        self.taken: set[int] = set()  # slots that something has fed
        self.hulls = [self._hulls(variant) for variant in program.variants]
        self.segments = [segments(program, device, v) for v in range(len(program.variants))]
        self.segment_of = [
            {op.name: n for n, ops in enumerate(own) for op in ops} for own in self.segments
        ]
        self.sent = self._sent()
        self.versions: dict[tuple[Key, str, str], int] = {}  # of a weight that an operator uses
        self.codes: dict[object, Code] = {}
        self.calls: dict[tuple[object, Key], Call] = {}
        self.out: list[Action] = []
        self.waiting: dict[int, list[Receive]] = {}  # by instruction
        self.answers = Answers(program, device)
        self.answered: dict[tuple[int, int], list[int]] = {}  # sends, by instruction and peer
        self.sends = 0
        self.updated: list[int] = []
        self.given: set[str] = set()  # parameters whose gradients are handed in
        self.numbers = {own: n for n, own in enumerate(numbered(program.slices))}
        self.order: list[int] = []  # of slices that are summed, or updated where they are
        self.buckets: list[Bucket] = []
        self.groups: list[tuple[int, ...]] = []
        self.written: dict[str, list[Box]] = {}
        self.divided = self.plan.syncing.divided and bool(program.slices)
        self.rows: dict[str, Slots] = {}  # of divided parameters: what this device is the home of
        self.wholes: list[Whole] = []
        self._place_lasting()

    # -- slots -------------------------------------------------------------------------------------

    def _slot(self, box: Box) -> int:
        self.shapes.append(box.shape)
        return len(self.shapes) - 1

    def _hulls(self, variant: Variant) -> dict[str, Box]:
        """The smallest box of every input and frozen value that holds all that this device reads."""
        hulls: dict[str, Box] = {}
        for op in variant.graph.ops:
            names = [(i, n) for i, n in enumerate(op.inputs) if self.graph.values[n].role != "op"]
            for tile in variant.tiles[op.name].tiles if names else ():
                if tile.device != self.device:
                    continue
                regions = op.space.regions(tile.box)
                for i, name in names:
                    region = regions[i]
                    if region is not None:
                        hulls[name] = hull([hulls.get(name, region), region])
        return hulls

    def _sent(self) -> list[set[str]]:
        """By variant, the values that this device sends."""
        sent: list[set[str]] = [set() for _ in self.program.variants]
        for i in self.program.instructions:
            if isinstance(i, Move) and any(m.source == self.device for m in i.messages):
                sent[i.key.replica].add(i.value)
        return sent

    def _place_lasting(self) -> None:
        for name, shares in self.program.shares.items():
            mine = [s for s in shares if self.device in (*s.devices, s.home)]
            for share in mine:
                if self.divided and name in self.program.slices:
                    self._place_divided(name, share.box)
                    continue
                slot = self._last(name, "parameter", share.box)
                if name in self.program.active and share.home in (-1, self.device):
                    self.updated.append(slot)
        for value in self.graph.values.values():
            full = Box.full(value.shape)
            read = [hulls[value.name] for hulls in self.hulls if value.name in hulls]
            if value.role == "buffer":
                self._last(value.name, "buffer", full)
            elif value.role in ("frozen", "constant") and read:
                box = full if value.role == "constant" else hull(read)
                self._last(value.name, value.role, box)

    def _place_divided(self, name: str, box: Box) -> None:
        """Rows of which this device is the home last; the rest of the box is there while it is used."""
        slices = self.program.slices[name]
        own = [s.box for s in slices if s.home == self.device and box.holds(s.box)]
        assert len(own) <= 1, f"device {self.device} is the home of {len(own)} slices of {box}"
        if own == [box]:
            self.rows.setdefault(name, []).append((box, self._last(name, "parameter", box)))
            return
        slot, kept = self._last(name, "whole", box), -1
        for rows in own:
            kept = self._slot(rows)
            self.sources.append(Source(name, "parameter", rows, kept))
            self.rows.setdefault(name, []).append((rows, kept))
        where = own[0].within(box) if own else ()
        dtype = self.graph.values[name].dtype
        self.wholes.append(Whole(slot, box.shape, dtype, kept, where))

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
                box = self.hulls[key.replica][of] if role == "input" else Box((), ())
                source = Source(of, role, box, self._slot(box), key)
                self.sources.append(source)
                self.source_of[source.slot] = source
                self.fed[key, of] = [(box, source.slot)]
            return self.fed[key, of]
        return self.lasting[of]

    # -- instructions ------------------------------------------------------------------------------

    def actions(self) -> Actions:
        here = [
            (n, i)
            for n, i in enumerate(self.program.instructions)
            if self.overlap or not i.key.step
        ]
        waits = self._segment_waits(here)
        tag = 0
        for number, i in here:
            tags = range(tag, tag + _tags(i))
            tag += len(tags)
            if isinstance(i, Reduce):
                self._groups(i)
            if self._by_wire(i):
                self._give(i)
                continue
            if isinstance(i, Update):
                self._update(i, here)
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
        if self.program.slices:
            self.out.append(Step(here[-1][1].key))
        self._number_receives()
        if self.overlap:
            self._spend()
        outputs = self._outputs()
        self._drop({slot for pieces in outputs.values() for _, slot in pieces})
        self._lay_down()
        return Actions(
            self.device, self.out, len(self.shapes), self.shapes, self.sources, self.updated,
            self.buckets, outputs, self.written, self.groups, self._links(), self._slices(),
            self.wholes, self.order,
        )  # fmt: skip

    def _update(self, update: Update, here: Sequence[tuple[int, Instruction]]) -> None:
        if not self.overlap:
            if not any(isinstance(action, Step) for action in self.out):
                # All gradients are there before the first update, so one step of the optimizer
                # does all; ranks without parameters take part, if only in clipping.
                every = (u for _, u in here if isinstance(u, Update))
                self._arrive(d for u in every for d in u.deps)
                self.out.append(Step(update.key))
            return
        if self.device not in update.devices:
            return
        slots = tuple(slot for box, slot in self.lasting[update.parameter] if slot in self.updated)
        last = self.out[-1] if self.out else None
        if isinstance(last, Step) and last.key == update.key:
            last.slots += slots
        else:
            self.out.append(Step(update.key, slots))

    def _by_wire(self, i: Instruction) -> bool:
        """Whether a synchroniser does it, not this rank's actions: all of slices but pulls before a use."""
        pulled = self.divided and isinstance(i, Move) and i.what.pulls
        return bool(self.program.slices) and _of_a_slice(i) and not pulled

    def _give(self, i: Instruction) -> None:
        """A parameter's gradient is complete: all its slices on this device are handed in."""
        name = _parameter(i)
        if name not in self.given:
            self.given.add(name)
            held = {s.box for s in self.program.shares[name] if self.device in s.devices}
            slots = tuple(slot for box, slot in self.lasting.get(name, []) if box in held)
            if slots:
                self.out.append(Give(i.key, slots))
        if self.plan.syncing.collective:
            self._leave(name, i)

    def _leave(self, name: str, i: Instruction) -> None:
        """A slice is summed where the program has it, or, held by one device alone, updated."""
        if isinstance(i, Update):
            share = i.shares[0]
            if len(share.devices) > 1:  # comes after its sum
                return
        else:
            assert isinstance(i, Reduce)
            share = i.shares[0][0]
        number = self.numbers[name, share]
        self.order.append(number)
        if self.device in share.devices:
            self.out.append(Leave(i.key, number, f"reduce {name}"))

    def _slices(self) -> list[Sliced]:
        """All slices of the program, numbered alike on every rank."""
        priority = self.program.priority if self.plan.syncing.urgent else {}
        found = []
        for name, slices in self.program.slices.items():
            dtype = self.graph.values[name].dtype
            for share in slices:
                slot, rows = -1, slice(0, 0)
                if self.device in (*share.devices, share.home):
                    held, slot = next((b, s) for b, s in self.lasting[name] if b.holds(share.box))
                    rows = share.box.within(held)[0] if share.box.shape else slice(None)
                own = next((s for b, s in self.rows.get(name, []) if b == share.box), -1)
                found.append(Sliced(name, share, dtype, priority.get(name, 0), slot, rows, own))
        return found

    def _spend(self) -> None:
        """Which old weights are used after an update, and which forward is the last to use them."""
        done: dict[int, int] = {}  # updates so far, by slot
        steps: dict[tuple[int, int], Step] = {}  # that replaces a version of a slot
        uses: dict[tuple[int, int], Forward] = {}  # the last use of one that was replaced
        for action in self.out:
            if isinstance(action, Step):
                for slot in action.slots:
                    steps[slot, done.get(slot, 0)] = action
                    done[slot] = done.get(slot, 0) + 1
            elif isinstance(action, Forward) and not action.again:
                for slot, version in zip(action.call.weights, action.versions, strict=True):
                    if version < done.get(slot, 0):
                        uses[slot, version] = action
        for (slot, version), action in uses.items():
            steps[slot, version].kept += (slot,)
            action.spent.append((slot, version))

    def _segment_waits(
        self, here: Sequence[tuple[int, Instruction]]
    ) -> dict[tuple[Key, str, int], set[int]]:
        """What a segment waits for: all that its operators wait for."""
        waits: dict[tuple[Key, str, int], set[int]] = {}
        read = parameters_of(self.graph)
        for _, i in here:
            if isinstance(i, Run) and self.device in i.devices:
                if i.phase == "F" and i.versions:
                    for name, version in zip(read[i.op], i.versions, strict=True):
                        self.versions[i.key, i.op, name] = version
                segment = self.segment_of[i.key.replica][i.op]
                waits.setdefault((i.key, i.phase, segment), set()).update(i.deps)
        return waits

    def _arrive(self, deps: Iterable[int]) -> None:
        """Waits for messages where they are first needed; buffers take what has come."""
        for d in deps:
            receives = self.waiting.pop(d, [])
            for receive in receives:
                answers = self.answered.get((d, receive.peer), [])
                self.out.append(Arrive(receive, answers))
            if receives and receives[0].what.activates:
                self._keep({receives[0].value}, receives[0].key)

    def _run(self, run: Run, waits: dict[tuple[Key, str, int], set[int]]) -> None:
        """A segment runs where its first instruction stands; the others are part of it."""
        number = self.segment_of[run.key.replica][run.op]
        deps = waits.pop((run.key, run.phase, number), None)
        if deps is None:
            return
        self._arrive(sorted(deps))
        if run.phase == "F":
            self._forward(number, run.key)
            return
        call = self.calls[(run.key.replica, number), run.key]
        if run.phase == "R":
            self.out.append(Forward(call, again=True))
        else:
            self.out.append(Backward(call, run.phase))

    def _forward(self, number: int, key: Key) -> None:
        ops, where = self.segments[key.replica][number], (key.replica, number)
        if where not in self.codes:
            again = any(ops[0].name in block for block in self.plan.recompute)
            wanted = self._wanted(ops, key.replica)
            self.codes[where] = self._writer(key).segment(ops, wanted, again=again)
        call = self._call(where, key, self.codes[where], _label(ops))
        names = {name for block in self.plan.recompute for name in block}
        call.recompute = call.backward and ops[0].name in names
        call.split = self.plan.split_backward
        call.stage = self.stages.get(ops[0].name, 0)
        self.out.append(Forward(call, versions=self._versions_of(call, ops)))
        merges = self.program.variant(key).merges
        self._after([op for op in ops if op.name not in merges], key)

    def _versions_of(self, call: Call, ops: Sequence[Op]) -> tuple[int, ...]:
        """By weight, the version that the segment uses; its operators agree on it."""
        if not self.overlap:
            return ()
        found = {n: v for op in ops for (k, o, n), v in self._by_op(call.key, op)}
        return tuple(found[piece.of] for piece in call.code.weights)  # type: ignore[index]

    def _by_op(self, key: Key, op: Op) -> list[tuple[tuple[Key, str, str], int]]:
        names = dict.fromkeys(n for n in op.inputs if (key, op.name, n) in self.versions)
        return [((key, op.name, n), self.versions[key, op.name, n]) for n in names]

    def _merge(self, merge: Merge) -> None:
        self._arrive(merge.deps)
        where = ("merge", merge.op, merge.key.replica)
        if merge.phase == "B":
            self.out.append(Backward(self.calls[where, merge.key]))
            return
        op = self.program.variant(merge.key).ops[merge.op]
        if where not in self.codes:
            self.codes[where] = self._writer(merge.key).merge(op, merge.cells)
        call = self._call(where, merge.key, self.codes[where], f"merge {op.name}")
        call.stage = self.stages.get(op.name, 0)
        self.out.append(Forward(call))
        self._after([op], merge.key)

    def _writer(self, key: Key) -> Writer:
        def boxes(of: Of) -> list[Box]:
            return [box for box, _ in self._held(key, of)]

        variant = self.program.variant(key)
        return Writer(
            self.program, variant, self.device, self.place, boxes, lambda p: self._kind(key, p)
        )

    def _wanted(self, ops: Sequence[Op], variant: int) -> set[str]:
        """Values of a segment that are needed outside of it."""
        inside = {op.name for op in ops}
        made = {o for op in ops for o in op.outputs}
        wanted = set(self.graph.updates.values()) | set(self.graph.outputs) | {self.graph.loss}
        for op in self.graph.ops:
            if op.name in self.segment_of[variant] and op.name not in inside:
                wanted.update(op.inputs)
        wanted |= self.sent[variant]
        return {name for name in made if name in wanted}

    def _call(self, number: object, key: Key, code: Code, label: str) -> Call:
        call = Call(len(self.calls), label, code, key)
        for piece in (*code.graded, *code.plain):
            self._feed(key, piece.of)
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

    def _feed(self, key: Key, of: Of) -> None:
        """What a batch gives is taken where it is first read."""
        if isinstance(of, str) and self.graph.values[of].role in ("input", "seed"):
            ((_, slot),) = self._held(key, of)
            if slot not in self.taken:
                self.taken.add(slot)
                self.out.append(Feed(self.source_of[slot], key))

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
        closes = of[0] in self.program.variant(key).closing
        return "graded" if own or not closes else "plain"

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
            variant = self.program.variant(key)
            first = self.device == variant.loss_devices[0]
            self.out.append(Note(slot, first or bool(variant.closing), first, key))

    def _keep(self, names: set[str], key: Key) -> None:
        keep = Keep(key)
        for buffer, value in self.graph.updates.items():
            pieces = self._held(key, value) if value in names else []
            if not pieces:
                continue
            ((full, slot),) = self.lasting[buffer]
            if len(pieces) == 1 and pieces[0][0] == full:
                keep.whole.append((slot, pieces[0][1]))
            else:
                keep.pieces.append((slot, list(pieces)))
            if self._counts(value):
                self.written[buffer] = [box for box, _ in pieces]
        if keep.whole or keep.pieces:
            self.out.append(keep)

    def _counts(self, value: str) -> bool:
        """Replicas keep buffers of their own; those of the first micro-batch's workers are saved."""
        if not self.plan.stages:
            return True
        stage = self.stages[self.program.producer(value).name]
        first = self.program.variants[0].tiles
        return any(self.device in first[name].devices for name in self.plan.stages[stage])

    # -- messages -----------------------------------------------------------------------------------

    def _move(self, number: int, move: Move, tags: Sequence[int]) -> None:
        for message, tag in zip(move.messages, tags, strict=True):
            if message.source == self.device:
                send = self._send(move, message, tag)
                send.number = self.sends
                self.sends += 1
                self.out.append(send)
                answer = self.answers.first(number, message.target)
                if answer is not None:
                    self.answered.setdefault(answer, []).append(send.number)
        for message, tag in zip(move.messages, tags, strict=True):
            if message.target == self.device:
                receive = self._receive(move, message, tag)
                self.out.append(receive)
                self.waiting.setdefault(number, []).append(receive)

    def _things(self, move: Move, message: Message) -> list[Of]:
        """What a message carries of each box: a value, or the tensors of a part."""
        if move.what.content == Content.NOTHING:
            return []
        if message.part < 0:
            return [move.value]
        op = self.program.producer(move.value).name
        return [(op, message.part, k) for k in range(tensors_in(self.program, move, message))]

    def _send(self, move: Move, message: Message, tag: int) -> Send:
        back = move.what.backward
        rows, parts = self._rows(move), []
        for box in message.boxes:
            for of in self._things(move, message):
                held = self.received[move.key, of] if back else self._held(move.key, of)
                if rows:
                    held = self.rows[move.value]
                found = overlapping([b for b, _ in held], box)
                make = gather([held[i][0] for i in found], box)
                parts.append(Part(box.shape, tuple(held[i][1] for i in found), make))
        label = f"{move.what} of {move.value} to {message.target}"
        dtype = self.graph.values[move.value].dtype
        return Send(message.target, tag, move.what, label, parts, dtype, move.key, rows)

    def _rows(self, move: Move) -> bool:
        """Whether it brings rows of a divided parameter."""
        return self.divided and move.what.pulls

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
            message.source, tag, move.what, label, parts, dtype, elements, move.value, move.key,
            self._rows(move),
        )  # fmt: skip

    def _arrival(self, move: Move, of: Of, box: Box) -> Part:
        if move.what.forward:
            slot = self._slot(box)
            self.received.setdefault((move.key, of), []).append((box, slot))
            return Part(box.shape, (slot,))
        if not move.what.of_parameters:
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
        moves = (
            i for i in self.program.instructions if isinstance(i, Move) and not self._by_wire(i)
        )
        return sorted({(m.source, m.target) for i in moves for m in i.messages})

    # -- parameters ----------------------------------------------------------------------------------

    def _groups(self, reduce: Reduce) -> None:
        for shares in reduce.shares:
            self.groups += [s.devices for s in shares if s.devices not in self.groups]

    def _reduce(self, summed: Reduce, tag: int) -> None:
        together: dict[tuple[tuple[int, ...], torch.dtype], list[tuple[int, int]]] = {}
        for name, shares in zip(summed.parameters, summed.shares, strict=True):
            slots = dict(self.lasting[name]) if name in self.lasting else {}
            for share in shares:
                if self.device in share.devices:
                    own = together.setdefault((share.devices, self.graph.values[name].dtype), [])
                    own.append((slots[share.box], share.box.volume))
        label = f"reduce {summed.parameters[0]}"
        for (devices, dtype), own in together.items():
            elements = sum(volume for _, volume in own)
            self.buckets.append(Bucket(devices, tuple(s for s, _ in own), dtype, elements))
            self.out.append(Sum(len(self.buckets) - 1, tag, label, summed.key))

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

    def _lay_down(self) -> None:
        """Divided parameters go after the last segment that uses them before they come again."""
        wholes = {whole.slot for whole in self.wholes}
        later: set[int] = set()  # that are used before they come again
        for action in reversed(self.out) if wholes else ():
            if isinstance(action, Arrive) and action.receive.rows:
                later -= {slot for part in action.receive.parts for slot in part.slots}
            elif isinstance(action, Forward | Backward):
                own = wholes & set(action.call.weights)
                action.lay_down += sorted(own - later)
                later |= own


def _touched(action: Action) -> Iterable[int]:
    """Slots that an action reads or fills."""
    if isinstance(action, Forward):
        call = action.call
        filled = [] if action.again else call.results
        return [*call.graded, *call.plain, *filled]
    if isinstance(action, Send) and action.what.forward:
        return [slot for part in action.parts for slot in part.slots]
    if isinstance(action, Arrive) and action.receive.what.forward:
        return [slot for part in action.receive.parts for slot in part.slots]
    if isinstance(action, Keep):
        apart = [slot for _, pieces in action.pieces for _, slot in pieces]
        return [*(slot for _, slot in action.whole), *apart]
    if isinstance(action, Note):
        return [action.slot]
    return []


def _of_a_slice(i: Instruction) -> bool:
    return isinstance(i, Update | Reduce) or (isinstance(i, Move) and i.what.of_parameters)


def _parameter(i: Instruction) -> str:
    """Whose slice it is about."""
    if isinstance(i, Update):
        return i.parameter
    return i.parameters[0] if isinstance(i, Reduce) else i.value if isinstance(i, Move) else ""


def _tags(i: Instruction) -> int:
    """How many transfers of an instruction are told apart."""
    return len(i.messages) if isinstance(i, Move) else int(isinstance(i, Reduce))


def _label(ops: Sequence[Op]) -> str:
    return ops[0].name if len(ops) == 1 else f"{ops[0].name} … {ops[-1].name}"
