"""Operator kinds: how each kind is written in index notation, and how a box of it is executed.

A file in ops/ declares a kind with `declare`: its notation (space.py), a function that makes kernels, and
its traits (traits.py). An operator of a graph (`Op`) refers to its kind by name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.graph import Op
from raddle.graph.index import Range
from raddle.graph.space import Work
from raddle.graph.traits import TRAITS, Traits

# Takes a tensor for the region of each operand (None if it is absent); returns a tensor, or a tuple.
Kernel = Callable[..., Any]
# (operator, partial results of one box of the output, how many points of the reduced dimensions each of
# them covers) -> the complete result
MergeFunction = Callable[[Op, Sequence[tuple[Tensor, ...]], Sequence[int]], tuple[Tensor, ...]]


class Signature(NamedTuple):
    """Operands, outputs and attributes of an operator, for the function that writes its index notation."""

    shapes: tuple[tuple[int, ...], ...]  # of the operands that are present
    letters: tuple[str, ...]  # of the dimensions of each operand that is present
    outputs: tuple[tuple[int, ...], ...]  # shapes of the outputs
    # the attributes of the operator: what its kernel needs besides tensors, such as a stride
    attrs: Mapping[str, Any]


@dataclass(frozen=True)
class OperatorKind:
    """An operator kind.

    notation: index notation, or a function that writes it for operands of any rank.
    kernel_factory: is called once for a box and returns the kernel that computes it, so that a kernel
    does no index arithmetic when it runs.
    merge: combines partial results; None if they are summed.
    flops_per_point: floating-point operations per point of the iteration space; products always have 2.
    flops: (operator, box, operand) -> floating-point operations of the forward (operand None) or of the
    gradient of that operand; None: derived from the notation.
    tensor_attr: the name of an attribute, an integer, that its kernel also takes as a tensor, after its
    operands. It differs between operators that are otherwise equal, which can then share generated code.
    "": there is none.
    """

    name: str
    notation: str | Callable[[Signature], str]
    kernel_factory: Callable[[OperatorTile], Kernel]
    flops_per_point: int = 1
    merge: MergeFunction | None = None
    flops: Callable[[Op, Box, int | None], int] | None = None
    tensor_attr: str = ""


class OperatorTile(NamedTuple):
    """One box of an operator's iteration space, on a device: a kernel is made for it."""

    op: Op
    box: Box
    regions: tuple[Box | None, ...]  # of each operand that is present; None: no element is needed
    device: torch.device

    @property
    def attrs(self) -> Mapping[str, Any]:
        return self.op.attrs

    @property
    def is_full(self) -> bool:
        return self.box == self.op.space.full

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first output's box."""
        return self.op.space.output_boxes(self.box)[0].shape

    @property
    def is_partial(self) -> bool:
        return self.op.space.is_partial(self.box)

    def range(self, name: str) -> Range:
        """Returns the box's range in the dimension of this name."""
        for d, dim in enumerate(self.op.space.dims):
            if dim.name == name:
                return self.box.lo[d], self.box.hi[d]
        raise KeyError(f"no dimension {name} in '{self.op.notation}'")

    def region(self, slot: int) -> Box | None:
        """Returns the region of the operand that is kernel argument number `slot`."""
        return (
            self.regions[self.op.argument_slots.index(slot)]
            if slot in self.op.argument_slots
            else None
        )

    def pads(self, slot: int) -> list[Range]:
        """Returns the padding that the box reads: for each dimension, (elements below, elements above).

        slot: the number of the operand's kernel argument.
        """
        operand = self.op.argument_slots.index(slot)
        region = self.regions[operand]
        assert region is not None
        spans = self.op.space.spans(operand, self.box)
        return [
            (lo - low, high - hi)
            for (low, high), lo, hi in zip(spans, region.lo, region.hi, strict=True)
        ]

    def constant(self, numbers: Sequence[float], dtype: torch.dtype | None = None) -> Tensor:
        """Returns a tensor on the device with these numbers, for a kernel.

        It is made with the kernel, not when the kernel runs: a copy from the host would wait for a GPU.
        """
        return torch.tensor(numbers, dtype=dtype, device=self.device)

    def full(self, value: float) -> Tensor:
        """Returns a constant tensor of the shape of the first output's box."""
        return torch.full(self.shape, value, dtype=self.op.dtypes[0], device=self.device)


OPERATOR_KINDS: dict[str, OperatorKind] = {}


def declare(
    name: str,
    notation: str | Callable[[Signature], str],
    kernel_factory: Callable[[OperatorTile], Kernel],
    traits: Traits,
    *,
    flops_per_point: int = 1,
    merge: MergeFunction | None = None,
    flops: Callable[[Op, Box, int | None], int] | None = None,
    tensor_attr: str = "",
) -> None:
    """Adds an operator kind; see OperatorKind."""
    if name in OPERATOR_KINDS:
        raise ImportError(f"two files declare operators of kind '{name}'")
    OPERATOR_KINDS[name] = OperatorKind(
        name, notation, kernel_factory, flops_per_point, merge, flops, tensor_attr
    )
    TRAITS[name] = traits


def make_kernel(op: Op, box: Box, device: torch.device | str = "cpu") -> Kernel:
    """Makes the function that computes a box of an operator from the regions that the box needs.

    The function takes one tensor for each of `op.inputs` (None if the box needs no element of it). It
    returns a tuple: the box of every output or, if the box is partial, parts for `merge_partials`. An
    operator with a `tensor_attr` takes one more tensor, if it is given.
    """
    tile = OperatorTile(op, box, op.space.regions(box), torch.device(device))
    run = OPERATOR_KINDS[op.kind].kernel_factory(tile)
    argument_slots = op.argument_slots
    if argument_slots == tuple(range(len(argument_slots))):
        return lambda *tensors: _as_tuple(run(*tensors))

    def run_with_absent_operands(*tensors: Tensor | None) -> Any:
        # attr_tensors: the tensor of the `tensor_attr`, if it is given
        operands, attr_tensors = tensors[: len(argument_slots)], tensors[len(argument_slots) :]
        arguments: list[Tensor | None] = [None] * (max(argument_slots, default=-1) + 1)
        for slot, tensor in zip(argument_slots, operands, strict=True):
            arguments[slot] = tensor
        return _as_tuple(run(*arguments, *attr_tensors))

    return run_with_absent_operands


def tensor_attr(op: Op) -> int | None:
    """Returns the attribute that an operator's kernel also takes as a tensor; None: there is none."""
    name = OPERATOR_KINDS[op.kind].tensor_attr
    return op.attrs.get(name) if name else None


def kernel_key(op: Op) -> Hashable:
    """Returns a key: operators with equal keys have equal kernels, but for the value of `tensor_attr`."""
    name = OPERATOR_KINDS[op.kind].tensor_attr
    attrs = tuple((key, repr(value)) for key, value in sorted(op.attrs.items()) if key != name)
    return op.kind, attrs, op.notation, op.space, op.argument_slots, op.dtypes


def merge_partials(
    op: Op, parts: Sequence[tuple[Tensor, ...]], boxes: Sequence[Box]
) -> tuple[Tensor, ...]:
    """Combines partial results of the same box of the output; boxes: the box of each part."""
    merge_function = OPERATOR_KINDS[op.kind].merge
    if merge_function is not None:
        counts = [_reduced_points(op, box) for box in boxes]
        return merge_function(op, parts, counts)
    # column: the same output in all parts
    return tuple(_sum(column) for column in zip(*parts, strict=True))


def work(op: Op, box: Box, operand: int | None = None) -> Work:
    """Returns the forward work of a box or, if an operand is given, the work of computing its gradient."""
    space = op.space
    result = space.forward_work(box) if operand is None else space.backward_work(box, operand)
    flops = OPERATOR_KINDS[op.kind].flops
    return result if flops is None else result._replace(flops=flops(op, box, operand))


def _reduced_points(op: Op, box: Box) -> int:
    """Returns the number of points of a box in the reduced dimensions."""
    count = 1
    for d in op.space.reduced_dims:
        count *= box.hi[d] - box.lo[d]
    return count


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def _as_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def int_per_dim(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Returns an argument of a pool or convolution for each dimension, if it may be one integer for all."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * rank if len(values) == 1 else values


def numbered_integers(**lists: Sequence[int]) -> dict[str, int]:
    """Names the integers of each dimension as the notation does: s=(2, 1) gives s0 = 2, s1 = 1."""
    return {f"{name}{i}": v for name, values in lists.items() for i, v in enumerate(values)}
