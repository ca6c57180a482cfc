"""Generates the code of a device's segments and merges, once for each variant.

A variant is a way in which some micro-batches run (their size, their devices); all micro-batches of a
variant share the generated code. A key names a micro-batch: its step, its number in the step, and its
variant. A piece is a box of a tensor. The id of a tensor is the name of a value or, for a partial result,
(operator, tile, k): its k-th tensor (function_writer.py). A number is an integer argument of a function,
which differs between functions that are otherwise equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.graph import Op
from raddle.program.program import Cell, Key, Program
from raddle.runtime.builders.slot_table import SlotTable
from raddle.runtime.code_generator import CodeGenerator
from raddle.runtime.function_writer import GeneratedCode, Piece, TensorId

# If there was an equal code before, returns the given one with the function of that code.
ShareCode = Callable[[GeneratedCode], GeneratedCode]


class CodeBuilder:
    """Generates the functions of one device.

    place: the torch device that it computes on. share: gives equal codes the same function, so that
    torch.compile compiles it once; None: functions are not compiled.
    """

    def __init__(
        self, program: Program, device: int, place: torch.device, slot_table: SlotTable, *,
        share: ShareCode | None = None,
    ) -> None:  # fmt: skip
        self.program, self.device, self.place, self.slot_table = program, device, place, slot_table
        self.share = share
        self._numbers: dict[int, Tensor] = {}  # number -> the tensor that passes it to functions
        self._codes: dict[object, GeneratedCode] = {}  # by code key

    def segment(
        self,
        code_key: object,
        ops: Sequence[Op],
        needed: Iterable[str],
        key: Key,
        *,
        in_place: bool,
    ) -> GeneratedCode:
        """Returns the code of a segment with these operators; generates it at the first call with this key.

        code_key: (variant, number of the segment); needed: names of the values that are used after the
        segment; in_place: whether the function may update running statistics in place.
        """
        if code_key not in self._codes:
            # A compiled function that writes to its arguments takes longer to call.
            in_place = in_place and self.share is None
            code = self._generator(key).segment(ops, needed, in_place=in_place)
            self._codes[code_key] = code if self.share is None else self.share(code)
        return self._codes[code_key]

    def merge(self, code_key: object, op: Op, cells: Sequence[Cell], key: Key) -> GeneratedCode:
        """Returns the code of an operator's merge. code_key: ("merge", operator, variant)."""
        if code_key not in self._codes:
            code = self._generator(key).merge(op, cells)
            self._codes[code_key] = code if self.share is None else self.share(code)
        return self._codes[code_key]

    def tensors_of(self, numbers: Iterable[int]) -> tuple[Tensor, ...]:
        """Returns the tensors that pass these numbers to a function."""
        for n in numbers:
            if n not in self._numbers:
                self._numbers[n] = torch.tensor(n, dtype=torch.int32, device=self.place)
        return tuple(self._numbers[n] for n in numbers)

    def _generator(self, key: Key) -> CodeGenerator:
        """Returns a code generator that knows the boxes that the device holds in this micro-batch."""

        def boxes(tensor_id: TensorId) -> list[Box]:
            return [box for box, _ in self.slot_table.box_slots(key, tensor_id)]

        variant = self.program.variant(key)
        return CodeGenerator(
            self.program,
            variant,
            self.device,
            self.place,
            boxes,
            lambda p: self._argument_kind(key, p),
        )

    def _argument_kind(self, key: Key, piece: Piece) -> str:
        """Returns the kind of a call's argument: "differentiable", "weight" or "nondifferentiable"."""
        tensor_id = piece.tensor_id
        if not self.is_active(tensor_id):
            return "nondifferentiable"
        if isinstance(tensor_id, str):
            return (
                "weight"
                if self.slot_table.graph.values[tensor_id].role == "parameter"
                else "differentiable"
            )
        computed_here = any(
            box == piece.box for box, _ in self.slot_table.computed.get((key, tensor_id), [])
        )
        # With a replicated loss (program/replicated_loss.py), every device starts the gradient of the
        # partial results that it computed itself. So results from other devices get no gradient here.
        starts_own_gradient = tensor_id[0] in self.program.variant(key).replicated_loss_ops
        return "differentiable" if computed_here or not starts_own_gradient else "nondifferentiable"

    def is_active(self, tensor_id: TensorId) -> bool:
        """Returns whether a value, or any output of the operator of a partial result, needs a gradient."""
        return any(name in self.program.active for name in self.value_names(tensor_id))

    def value_names(self, tensor_id: TensorId) -> Sequence[str]:
        """Returns the value with this id; for a partial result, all outputs of its operator."""
        return (
            [tensor_id]
            if isinstance(tensor_id, str)
            else self.program.variants[0].ops[tensor_id[0]].outputs
        )
