"""Checks the batches that a user gives to a trainer, and cuts out the part that this rank reads.

A user gives either the whole (global) batch or only the part of this rank. A part is a box of every
micro-batch: samples, and with spatial or sequence parallelism also a range of another dimension. Example:
with 8 samples, 2 micro-batches and data parallelism on 2 ranks, the part of rank 1 is its half of each
micro-batch, concatenated:

    sample       0 1 2 3 | 4 5 6 7     two micro-batches
    rank 1           2 3 |     6 7     a part of 4 samples

A slot is a numbered place for a tensor (actions.py). A SlotSource says which box of which input fills it;
its key names the step and the micro-batch. A variant is a way in which some micro-batches of a program run:
their size, and the tiles with their devices (program/program.py).
"""

# m: index of a micro-batch; micro-batches follow each other along the sample dimension of a batch

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raddle.errors import InputError
from raddle.graph.arguments import Path, map_leaves
from raddle.graph.box import Box
from raddle.program.program import Program, Run
from raddle.runtime.actions import RankActions
from raddle.runtime.builders.slot_table import SlotSource, read_hulls


class Input(NamedTuple):
    """One tensor of a batch: its shape in each micro-batch, and the box of it that this rank reads."""

    name: str
    shapes: tuple[tuple[int, ...], ...]  # shape of the tensor in each micro-batch
    dtype: torch.dtype
    sample_dim: int | None  # the dimension of samples; None: the tensor has none
    boxes: tuple[Box | None, ...]  # for each micro-batch; None: this rank reads nothing of it

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape in the whole batch."""
        return _concatenated_shape(self.shapes, self.sample_dim)

    @property
    def part_shape(self) -> tuple[int, ...] | None:
        """The shape of this rank's part, which is its boxes of all micro-batches, concatenated.

        It is None if the rank reads nothing, or if its boxes cannot be concatenated.
        """
        shapes = [box.shape for box in self.boxes if box is not None]
        if not shapes or (self.sample_dim is None and len(set(shapes)) > 1):
            return None
        other_sizes = {
            tuple(s for d, s in enumerate(shape) if d != self.sample_dim) for shape in shapes
        }
        return _concatenated_shape(shapes, self.sample_dim) if len(other_sizes) == 1 else None


class BatchCutter:
    """Checks and cuts batches for one rank, as its actions read them."""

    def __init__(self, program: Program, actions: RankActions) -> None:
        # (input, micro-batch) -> the box of it that this rank reads
        boxes = {
            (s.name, s.key.micro_batch): s.box
            for s in actions.sources_with_role("input")
            if not s.key.step  # overlapping steps all read the same boxes
        }
        self.program = program
        microbatches = range(program.plan.microbatches)
        graph = program.graph
        names = [n for n in graph.inputs if graph.values[n].role == "input"]
        self.inputs = {
            name: Input(
                name,
                tuple(_shape(program, name, m) for m in microbatches),
                graph.values[name].dtype,
                _sample_dim(graph.values[name].letters),
                tuple(boxes.get((name, m)) for m in microbatches),
            )
            for name in names
        }

    def tensors(self, batch: Any) -> dict[str, Tensor]:
        """Returns the batch's tensors by name. Raises InputError if the batch is not as captured."""
        template = self.program.graph.template
        assert template is not None, "a program that runs is of a captured graph"
        return template.tensors(batch)

    def check(self, tensors: Mapping[str, Tensor], rank: int) -> None:
        """Raises InputError if a shape or dtype is wrong.

        Each tensor may be that of the whole batch or this rank's part of it.
        """
        for spec in self.inputs.values():
            self._check(spec, tensors[spec.name], rank)

    def _check(self, spec: Input, tensor: Tensor, rank: int) -> None:
        """Raises InputError if a tensor has the wrong dtype or, if this rank reads it, shape."""
        whole, part = spec.full_shape, spec.part_shape
        read = any(box is not None for box in spec.boxes)
        if read and tuple(tensor.shape) not in (whole, part):
            hint = "" if part in (whole, None) else f" (or {part}, the part of rank {rank} alone)"
            raise InputError(
                f"'{spec.name}' has shape {tuple(tensor.shape)}, but the plan is for {whole}{hint}: "
                "drop a last, smaller batch, or plan for this size."
            )
        if tensor.dtype != spec.dtype:
            raise InputError(f"'{spec.name}' is {tensor.dtype}, but was captured as {spec.dtype}.")

    def unplanned_size(self, tensors: Mapping[str, Tensor]) -> int | None:
        """Returns the number of samples of a whole batch whose size differs from the plan's.

        None: the batch has the planned size, or it is this rank's part of a planned batch, or its tensors
        have other dimensions than planned, or different numbers of samples.
        """
        counts = set()
        for spec in self.inputs.values():
            shape, dim = tuple(tensors[spec.name].shape), spec.sample_dim
            if dim is None or len(shape) != len(spec.full_shape) or shape == spec.part_shape:
                continue
            pairs = enumerate(zip(shape, spec.full_shape, strict=True))
            if any(a != b for d, (a, b) in pairs if d != dim):
                return None
            # A rank that reads nothing of an input may be given an empty tensor.
            if shape != spec.full_shape and shape[dim]:
                self._refuse_ambiguous(spec, shape[dim])
                counts.add(shape[dim])
        return counts.pop() if len(counts) == 1 else None

    def _refuse_ambiguous(self, spec: Input, samples: int) -> None:
        """Raises InputError if another rank could mistake this batch for its part of a planned batch."""
        assert spec.sample_dim is not None
        for device in range(self.program.plan.devices):
            parts = [
                box.shape[spec.sample_dim]
                for micro in range(len(spec.shapes))
                if (box := _box_read_by(self.program, device, spec.name, micro)) is not None
            ]
            if parts and sum(parts) == samples:
                raise InputError(
                    f"a batch of {samples} samples is as large as rank {device}'s part of a planned one: "
                    "drop it, or plan for its size."
                )

    def reader(
        self, steps: Sequence[Mapping[str, Tensor]], rank: int, place: torch.device
    ) -> Callable[[SlotSource], Tensor]:
        """Returns a function that reads the tensor of an input slot.

        steps: the tensors of each step's batch; place: the torch device that a tensor is put on.
        """
        for tensors in steps:
            self.check(tensors, rank)
        return lambda s: self.read(s, steps[s.key.step]).to(place, non_blocking=True)

    def read(self, source: SlotSource, tensors: Mapping[str, Tensor]) -> Tensor:
        """Returns the tensor of an input slot, cut from a whole batch or from this rank's part."""
        spec, m = self.inputs[source.name], source.key.micro_batch
        tensor = tensors[source.name]
        is_whole = tuple(tensor.shape) == spec.full_shape
        shapes = spec.shapes if is_whole else [box.shape if box else () for box in spec.boxes]
        # In this rank's part, the micro-batch consists of this rank's box only.
        shape, box = shapes[m], source.box if is_whole else Box.full(source.box.shape)
        if spec.sample_dim is not None and len(shapes) > 1:
            samples_before = sum(s[spec.sample_dim] for s in shapes[:m] if s)
            tensor = tensor.narrow(spec.sample_dim, samples_before, shape[spec.sample_dim])
        return tensor[box.slices_within(Box.full(shape))]

    def part(self, batch: Any) -> Any:
        """Returns a batch with this rank's part of each tensor of a whole batch."""
        template = self.program.graph.template
        assert template is not None, "a program that runs is of a captured graph"
        self.tensors(batch)  # raises if the batch is not as captured

        def part_of(path: Path, leaf: Any) -> Any:
            spec = self.inputs.get(template.names.get(path, ""))
            if spec is None:  # no tensor
                return leaf
            if all(box is None for box in spec.boxes):
                return leaf[:0] if leaf.dim() else leaf
            # None: boxes that cannot be concatenated, so the whole tensor
            return leaf if spec.part_shape is None else _cut(spec, leaf)

        return map_leaves(part_of, batch)


def _cut(spec: Input, tensor: Tensor) -> Tensor:
    """Returns this rank's part of a tensor: its boxes of all micro-batches, concatenated."""
    microbatches = [tensor] * len(spec.shapes)
    if spec.sample_dim is not None:
        sizes = [shape[spec.sample_dim] for shape in spec.shapes]
        microbatches = list(torch.split(tensor, sizes, spec.sample_dim))
    boxes = [
        t[box.slices_within(Box.full(shape))]
        for t, box, shape in zip(microbatches, spec.boxes, spec.shapes, strict=True)
        if box is not None
    ]
    if len(boxes) == 1 or spec.sample_dim is None:
        return boxes[0]
    return torch.cat(boxes, spec.sample_dim)


def _box_read_by(program: Program, device: int, name: str, micro: int) -> Box | None:
    """Returns the box of an input that a device reads in a micro-batch; None: nothing."""
    key = next(
        i.key for i in program.instructions if isinstance(i, Run) and i.key.micro_batch == micro
    )
    variant = program.variant(key)  # how this micro-batch runs
    # read_hulls: input -> the bounding box of all that the device reads of it
    return read_hulls(variant, device, variant.graph.readers.get(name, ())).get(name)


def _shape(program: Program, name: str, m: int) -> tuple[int, ...]:
    """Returns the shape of an input in micro-batch m."""
    value = program.graph.values[name]
    dim = _sample_dim(value.letters)
    return tuple(program.micro_batch_sizes[m] if d == dim else s for d, s in enumerate(value.shape))


def _sample_dim(letters: str) -> int | None:
    """Returns the index of the letter "n" (samples) among the names of dimensions, or None."""
    return letters.index("n") if "n" in letters else None


def _concatenated_shape(shapes: Sequence[tuple[int, ...]], dim: int | None) -> tuple[int, ...]:
    """Returns the shape that torch.cat along `dim` gives; if `dim` is None, the first shape."""
    return tuple(
        sum(shape[d] for shape in shapes) if d == dim else s for d, s in enumerate(shapes[0])
    )
