"""Builds the calls of a device: each segment and each merge becomes a generated function with its slots.

A segment is a sequence of operators of one device without communication inside. A merge combines the
partial results of an operator that is split along a reduced dimension. A variant is a way in which some
micro-batches run (their size, their devices); all micro-batches of a variant share the generated code. A
key names a micro-batch: its step, its number in the step, and its variant. A piece is a box of a tensor.
The id of a tensor is the name of a value or, for a partial result, (operator, tile, k): its k-th tensor
(function_writer.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from raddle.graph.graph import Op
from raddle.plans.native_dropout import has_native_dropout
from raddle.plans.pipelining import stage_of
from raddle.program.program import Instruction, Key, Merge, Move, Program, Run
from raddle.program.segments import segments
from raddle.runtime.actions import Call, Feed
from raddle.runtime.builders.codes import CodeBuilder, ShareCode
from raddle.runtime.builders.slot_table import SlotTable
from raddle.runtime.function_writer import GeneratedCode


class CallBuilder:
    """Builds the calls of one device.

    place: the torch device that it computes on; instructions: those that will run. Each Run (an operator in
    one phase) belongs to a segment. share: as for CodeBuilder.
    """

    def __init__(
        self, program: Program, device: int, place: torch.device, slot_table: SlotTable,
        instructions: Iterable[Instruction] = (), *, share: ShareCode | None = None,
    ) -> None:  # fmt: skip
        self.program, self.device, self.slot_table = program, device, slot_table
        self.codes = CodeBuilder(program, device, place, slot_table, share=share)
        self.stages = stage_of(program.plan)  # operator -> pipeline stage
        # For each variant: its segments as tuples of operators, and operator -> number of its segment.
        self.segments = [
            segments(program, device, v, compiled=share is not None)
            for v in range(len(program.variants))
        ]
        self.segment_of = [
            {op.name: n for n, ops in enumerate(variant_segments) for op in ops}
            for variant_segments in self.segments
        ]
        self._sent = _sent(program, device)  # for each variant, names of values that are sent
        # (code key, micro-batch) -> call. A code key identifies a generated function: (variant, segment) or
        # ("merge", operator, variant).
        self._calls: dict[tuple[object, Key], Call] = {}
        # Slots of batch inputs and seeds that have a Feed already
        self._read_inputs: set[int] = set()
        # (key, phase, segment) -> instructions that its Runs depend on; removed at the first Run
        self._waits: dict[tuple[Key, str, int], set[int]] = {}
        for i in instructions:
            if isinstance(i, Run) and device in i.devices:
                self._waits.setdefault(self._segment_run(i), set()).update(i.deps)

    def dependencies_at_first(self, run: Run) -> set[int] | None:
        """Returns all instructions that the Runs of a segment depend on; at later Runs, None."""
        return self._waits.pop(self._segment_run(run), None)

    def _segment_run(self, run: Run) -> tuple[Key, str, int]:
        """Returns the key, the phase ("F", "R", "B" or "W") and the number of the segment of a Run."""
        return run.key, run.phase, self.segment_of[run.key.variant][run.op]

    def segment(self, number: int, key: Key) -> Call:
        """Returns the call of a segment in a micro-batch."""
        ops, code_key = self.segments[key.variant][number], (key.variant, number)
        if (code_key, key) in self._calls:
            return self._calls[code_key, key]
        recomputed = any(ops[0].name in block for block in self.program.plan.recompute)
        # in_place: may update running statistics in place; a forward that runs twice must not
        code = self.codes.segment(
            code_key, ops, self._needed_outside(ops, key.variant), key, in_place=not recomputed
        )
        call = self._call(code, code_key, key, _label(ops))
        call.operators = tuple(op.name for op in ops)
        call.recompute = call.backward and recomputed
        # Without weights there is no phase "W".
        call.split_backward = self.program.plan.split_backward and bool(call.weights)
        call.stage = self.stages.get(ops[0].name, 0)
        call.random_stream = self._random_stream(ops, key.variant)
        return call

    def _random_stream(self, ops: Sequence[Op], variant: int) -> str:
        """Returns the random stream of a segment with native dropout of attention; "" if there is none.

        A random stream is a text. With the seed of the micro-batch, it determines the random numbers of a
        call (execution/random_generator.py). Native dropout: PyTorch's kernel draws the masks itself.

        The stream depends on the tile, not on the device, so copies of a tile on several devices have equal
        masks. If a segment has several such attentions (program/segments.py), the first gives the stream.
        """
        tiles = self.program.variants[variant].tiles
        for op in ops:
            if has_native_dropout(self.program.plan, op, tiles[op.name]):
                box = next(t.box for t in tiles[op.name].tiles if t.device == self.device)
                return f"{op.attrs['stream']} {op.space.output_boxes(box)[0]}"
        return ""

    def merge(self, merge: Merge) -> Call:
        """Returns the call of an operator's merge in a micro-batch."""
        key, code_key = merge.key, ("merge", merge.op, merge.key.variant)
        if (code_key, key) in self._calls:
            return self._calls[code_key, key]
        op = self.program.variant(key).ops[merge.op]
        # cells: boxes of the result, each with the tiles to combine and the devices that merge it
        code = self.codes.merge(code_key, op, merge.cells, key)
        call = self._call(code, code_key, key, f"merge {op.name}")
        call.stage = self.stages.get(op.name, 0)
        return call

    def feeds(self, call: Call) -> list[Feed]:
        """Returns Feeds for the batch inputs and seeds that this call reads, but no earlier call."""
        feeds = []
        for piece in (*call.code.differentiable, *call.code.nondifferentiable):
            if isinstance(piece.tensor_id, str) and self.slot_table.is_input(piece.tensor_id):
                source = self.slot_table.input_source(call.key, piece.tensor_id)
                if source.slot not in self._read_inputs:
                    self._read_inputs.add(source.slot)
                    feeds.append(Feed(source, call.key))
        return feeds

    def _call(self, code: GeneratedCode, code_key: object, key: Key, label: str) -> Call:
        """Makes the call of a generated function in a micro-batch, with new slots for its results."""
        slot_table = self.slot_table
        call = Call(len(self._calls), label, code, key)
        call.differentiable = [slot_table.slot_of(key, piece) for piece in code.differentiable]
        call.numbers = self.codes.tensors_of(code.numbers)
        call.weights = [slot_table.slot_of(key, piece) for piece in code.weights]
        call.nondifferentiable = [
            slot_table.slot_of(key, piece) for piece in code.nondifferentiable
        ]
        for tensor_id, box in code.results:
            call.results.append(slot_table.add_computed(key, tensor_id, box))
            # The tensors of a partial result have the dtype of the operator's first output.
            call.dtypes.append(slot_table.graph.values[self.codes.value_names(tensor_id)[0]].dtype)
            if self.codes.is_active(tensor_id):
                call.active_results.append(len(call.results) - 1)
        call.backward = bool(call.active_results and (call.differentiable or call.weights))
        self._calls[code_key, key] = call
        return call

    def _needed_outside(self, ops: Sequence[Op], variant: int) -> set[str]:
        """Returns the values of a segment that are used outside of it.

        They are sent or returned, other segments read them, they are new contents of buffers, the loss
        or metrics.
        """
        graph, inside = self.program.graph, {op.name for op in ops}
        computed = {o for op in ops for o in op.outputs}
        outputs = {*self.program.returned_outputs, *graph.metrics.values()}
        needed = {*graph.updates.values(), *outputs, graph.loss, *self._sent[variant]}
        for op in graph.ops:
            if op.name in self.segment_of[variant] and op.name not in inside:
                needed.update(op.inputs)
        return {name for name in computed if name in needed}


def _sent(program: Program, device: int) -> list[set[str]]:
    """Returns, for each variant, the names of the values that a device sends."""
    sent: list[set[str]] = [set() for _ in program.variants]
    for i in program.instructions:
        if isinstance(i, Move) and any(m.source == device for m in i.messages):
            sent[i.key.variant].add(i.value)
    return sent


def _label(ops: Sequence[Op]) -> str:
    return ops[0].name if len(ops) == 1 else f"{ops[0].name} … {ops[-1].name}"
