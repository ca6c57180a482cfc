"""Segments and merges as calls: functions of pieces, and the slots that they read and fill."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from raddle.graph.box import Box
from raddle.graph.graph import Op
from raddle.plans.pipelining import stage_of
from raddle.program.program import Instruction, Key, Merge, Move, Program, Run
from raddle.program.segments import segments
from raddle.runtime.actions import Call, Feed
from raddle.runtime.building.pieces import Pieces
from raddle.runtime.code import Writer
from raddle.runtime.function import Code, Of, Piece


class Calls:
    """Makes the calls of one device; code is written once for all micro-batches of a variant.

    `instructions` are those that run, of which a segment does all of its own where the first one stands.
    """

    def __init__(
        self, program: Program, device: int, place: torch.device, pieces: Pieces,
        instructions: Iterable[Instruction] = (),
    ) -> None:  # fmt: skip
        self.program, self.device, self.place, self.pieces = program, device, place, pieces
        self.stages = stage_of(program.plan)
        self.segments = [segments(program, device, v) for v in range(len(program.variants))]
        self.segment_of = [
            {op.name: n for n, ops in enumerate(own) for op in ops} for own in self.segments
        ]
        self._sent = _sent(program, device)
        self._codes: dict[object, Code] = {}
        self._made: dict[tuple[object, Key], Call] = {}
        self._fed: set[int] = set()  # slots of the batch that some call has taken
        self._waits: dict[tuple[Key, str, int], set[int]] = {}  # by segments that have not run
        for i in instructions:
            if isinstance(i, Run) and device in i.devices:
                self._waits.setdefault(self._run_of(i), set()).update(i.deps)

    def first(self, run: Run) -> set[int] | None:
        """At the first instruction of a segment, all that its operators wait for; None at the others."""
        return self._waits.pop(self._run_of(run), None)

    def _run_of(self, run: Run) -> tuple[Key, str, int]:
        return run.key, run.phase, self.segment_of[run.key.replica][run.op]

    def segment(self, number: int, key: Key) -> Call:
        """The call of a segment in a micro-batch."""
        ops, where = self.segments[key.replica][number], (key.replica, number)
        if (where, key) in self._made:
            return self._made[where, key]
        again = any(ops[0].name in block for block in self.program.plan.recompute)
        if where not in self._codes:
            wanted = self._wanted(ops, key.replica)
            self._codes[where] = self._writer(key).segment(ops, wanted, again=again)
        call = self._call(where, key, _label(ops))
        call.recompute = call.backward and again
        call.split = self.program.plan.split_backward
        call.stage = self.stages.get(ops[0].name, 0)
        return call

    def merge(self, merge: Merge) -> Call:
        """The call of an operator's merge in a micro-batch."""
        key, where = merge.key, ("merge", merge.op, merge.key.replica)
        if (where, key) in self._made:
            return self._made[where, key]
        op = self.program.variant(key).ops[merge.op]
        if where not in self._codes:
            self._codes[where] = self._writer(key).merge(op, merge.cells)
        call = self._call(where, key, f"merge {op.name}")
        call.stage = self.stages.get(op.name, 0)
        return call

    def feeds(self, call: Call) -> list[Feed]:
        """What a batch gives is taken where it is first read."""
        found = []
        for piece in (*call.code.graded, *call.code.plain):
            if isinstance(piece.of, str) and self.pieces.is_fed(piece.of):
                source = self.pieces.feed(call.key, piece.of)
                if source.slot not in self._fed:
                    self._fed.add(source.slot)
                    found.append(Feed(source, call.key))
        return found

    def _call(self, where: object, key: Key, label: str) -> Call:
        code, pieces = self._codes[where], self.pieces
        call = Call(len(self._made), label, code, key)
        call.graded = [pieces.slot_of(key, piece) for piece in code.graded]
        call.weights = [pieces.slot_of(key, piece) for piece in code.weights]
        call.plain = [pieces.slot_of(key, piece) for piece in code.plain]
        for of, box in code.results:
            call.results.append(pieces.make(key, of, box))
            call.dtypes.append(pieces.graph.values[self._names(of)[0]].dtype)
            call.backward |= self._is_active(of)
        call.backward = call.backward and bool(call.graded or call.weights)
        self._made[where, key] = call
        return call

    def _writer(self, key: Key) -> Writer:
        def boxes(of: Of) -> list[Box]:
            return [box for box, _ in self.pieces.held(key, of)]

        variant = self.program.variant(key)
        return Writer(
            self.program, variant, self.device, self.place, boxes, lambda p: self._kind(key, p)
        )

    def _wanted(self, ops: Sequence[Op], variant: int) -> set[str]:
        """Values of a segment that are needed outside of it."""
        graph, inside = self.program.graph, {op.name for op in ops}
        made = {o for op in ops for o in op.outputs}
        wanted = {*graph.updates.values(), *graph.outputs, graph.loss, *self._sent[variant]}
        for op in graph.ops:
            if op.name in self.segment_of[variant] and op.name not in inside:
                wanted.update(op.inputs)
        return {name for name in made if name in wanted}

    def _kind(self, key: Key, piece: Piece) -> str:
        """Whether a piece gets a gradient, is of a parameter, or neither."""
        of = piece.of
        if not self._is_active(of):
            return "plain"
        if isinstance(of, str):
            return "weight" if self.pieces.graph.values[of].role == "parameter" else "graded"
        own = any(box == piece.box for box, _ in self.pieces.made.get((key, of), []))
        # Where the program closes, others start the gradients of their own parts.
        closes = of[0] in self.program.variant(key).closing
        return "graded" if own or not closes else "plain"

    def _is_active(self, of: Of) -> bool:
        """Of partial results: whether any output of the operator is (of moments, only the variance)."""
        return any(name in self.program.active for name in self._names(of))

    def _names(self, of: Of) -> Sequence[str]:
        return [of] if isinstance(of, str) else self.program.variants[0].ops[of[0]].outputs


def _sent(program: Program, device: int) -> list[set[str]]:
    """By variant, the values that a device sends."""
    sent: list[set[str]] = [set() for _ in program.variants]
    for i in program.instructions:
        if isinstance(i, Move) and any(m.source == device for m in i.messages):
            sent[i.key.replica].add(i.value)
    return sent


def _label(ops: Sequence[Op]) -> str:
    return ops[0].name if len(ops) == 1 else f"{ops[0].name} … {ops[-1].name}"
