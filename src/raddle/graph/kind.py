"""Operator kinds: one line of index notation each, and how a box of it is executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.graph import Op
from raddle.graph.index import Range
from raddle.graph.space import Space, Work
from raddle.graph.traits import TRAITS, Traits

Kernel = Callable[..., Any]  # tensors of the regions (None where absent) -> a tensor, or a tuple
# An operator, the partial results of a cell, and how many points each is of -> the result
Merging = Callable[[Op, Sequence[tuple[Tensor, ...]], Sequence[int]], tuple[Tensor, ...]]


class Frame(NamedTuple):
    """What a line of notation may depend on."""

    shapes: tuple[tuple[int, ...], ...]
    letters: tuple[str, ...]
    outputs: tuple[tuple[int, ...], ...]
    attrs: Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """An operator kind.

    `line` is the notation, or a function that writes it for operands of any rank. `kernel(site)` is
    called once for a box and gives the function that runs it: all integers are settled beforehand.
    `merge` combines partial results where their sum is not the answer.
    """

    name: str
    line: str | Callable[[Frame], str]
    kernel: Callable[[Site], Kernel]
    cost: int = 1
    merge: Merging | None = None
    flops: Callable[[Space, Box, int | None], int] | None = None


class Site(NamedTuple):
    """One box of one operator, on a device: what a kernel is made for."""

    op: Op
    box: Box
    regions: tuple[Box | None, ...]
    device: torch.device

    @property
    def attrs(self) -> Mapping[str, Any]:
        return self.op.attrs

    @property
    def whole(self) -> bool:
        return self.box == self.op.space.full

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the first output's box."""
        return self.op.space.produces(self.box)[0].shape

    @property
    def partial(self) -> bool:
        return self.op.space.partial(self.box)

    def range(self, name: str) -> Range:
        for d, dim in enumerate(self.op.space.dims):
            if dim.name == name:
                return self.box.lo[d], self.box.hi[d]
        raise KeyError(f"no dimension {name} in '{self.op.line}'")

    def region(self, slot: int) -> Box | None:
        return self.regions[self.op.slots.index(slot)] if slot in self.op.slots else None

    def pads(self, slot: int) -> list[Range]:
        """By dimension: how far the box reaches beyond the region below and above (into padding)."""
        operand = self.op.slots.index(slot)
        region = self.regions[operand]
        assert region is not None
        spans = self.op.space.spans(operand, self.box)
        return [
            (lo - low, high - hi)
            for (low, high), lo, hi in zip(spans, region.lo, region.hi, strict=True)
        ]

    def full(self, value: float) -> Tensor:
        return torch.full(self.shape, value, dtype=self.op.dtypes[0], device=self.device)


KINDS: dict[str, Kind] = {}


def declare(
    name: str,
    line: str | Callable[[Frame], str],
    kernel: Callable[[Site], Kernel],
    traits: Traits,
    *,
    cost: int = 1,
    merge: Merging | None = None,
    flops: Callable[[Space, Box, int | None], int] | None = None,
) -> None:
    """Adds an operator kind."""
    if name in KINDS:
        raise ImportError(f"two files declare operators of kind '{name}'")
    KINDS[name] = Kind(name, line, kernel, cost, merge, flops)
    TRAITS[name] = traits


def kernel(op: Op, box: Box, device: torch.device | str = "cpu") -> Kernel:
    """The function that computes a box of an operator from the regions that the box needs.

    It takes one tensor for each of `op.inputs` (None where the box needs nothing of it) and returns a
    tuple: the box of every output, or, where the box is partial, the partial results to `merge`.
    """
    site = Site(op, box, op.space.regions(box), torch.device(device))
    run = KINDS[op.kind].kernel(site)
    slots = op.slots
    if slots == tuple(range(len(slots))):
        return lambda *tensors: _tuple(run(*tensors))

    def spread(*tensors: Tensor | None) -> Any:
        arguments: list[Tensor | None] = [None] * (max(slots, default=-1) + 1)
        for slot, tensor in zip(slots, tensors, strict=True):
            arguments[slot] = tensor
        return _tuple(run(*arguments))

    return spread


def merge(op: Op, parts: Sequence[tuple[Tensor, ...]], boxes: Sequence[Box]) -> tuple[Tensor, ...]:
    """The result of partial results of one and the same cell of the output, given their boxes."""
    special = KINDS[op.kind].merge
    if special is not None:
        counts = [_points(op, box) for box in boxes]
        return special(op, parts, counts)
    return tuple(_sum(column) for column in zip(*parts, strict=True))


def work(op: Op, box: Box, operand: int | None = None) -> Work:
    """Forward work of a box or, given an operand, the work of that operand's gradient."""
    space = op.space
    result = space.forward(box) if operand is None else space.backward(box, operand)
    flops = KINDS[op.kind].flops
    return result if flops is None else result._replace(flops=flops(space, box, operand))


def _points(op: Op, box: Box) -> int:
    """How many points of the summed dimensions a box holds."""
    count = 1
    for d in op.space.reduced:
        count *= box.hi[d] - box.lo[d]
    return count


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def _tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def ints(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """An integer argument of a pool or convolution, which may be given once for all dimensions."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * rank if len(values) == 1 else values


def numbered(**lists: Sequence[int]) -> dict[str, int]:
    """Attributes by dimension, as the notation names them: s=(2, 1) is s0 = 2, s1 = 1."""
    return {f"{name}{i}": v for name, values in lists.items() for i, v in enumerate(values)}
