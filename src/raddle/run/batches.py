"""The part of a batch that a rank reads: settled once, taken from whole batches or from the rank's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.graph import Graph
from raddle.run.actions import Actions, Source

# m: micro-batches, that follow each other along the sample dimension of a batch


class Input(NamedTuple):
    """One tensor of a batch: its shape as a whole, and the box of a micro-batch that this rank reads."""

    name: str
    shape: tuple[int, ...]  # of a micro-batch
    dtype: torch.dtype
    samples: int | None  # the dimension that counts samples
    box: Box | None  # None: this rank reads nothing of it


class Batches:
    """Cuts batches for one rank."""

    def __init__(self, graph: Graph, actions: Actions, microbatches: int) -> None:
        boxes = {s.name: s.box for s in actions.of("input")}
        self.m = microbatches
        self.inputs = [
            Input(
                name,
                graph.values[name].shape,
                graph.values[name].dtype,
                _samples(graph.values[name].letters),
                boxes.get(name),
            )
            for name in graph.inputs
            if graph.values[name].role == "input"
        ]

    def check(self, batch: Sequence[Tensor], rank: int) -> dict[str, Tensor]:
        """The tensors by name; each is the whole batch's, or this rank's part of it."""
        if len(batch) != len(self.inputs):
            names = ", ".join(i.name for i in self.inputs)
            raise InputError(
                f"a step takes {len(self.inputs)} tensors ({names}), not {len(batch)}."
            )
        for given, tensor in zip(self.inputs, batch, strict=True):
            self._check(given, tensor, rank)
        return {given.name: t for given, t in zip(self.inputs, batch, strict=True)}

    def _check(self, given: Input, tensor: Tensor, rank: int) -> None:
        if not isinstance(tensor, Tensor):
            raise InputError(f"'{given.name}' is a {type(tensor).__name__}: give a tensor.")
        whole, part = self._whole(given), self._part(given)
        if given.box is not None and tuple(tensor.shape) not in (whole, part):
            own = "" if whole == part else f" (or {part}, the part of rank {rank} alone)"
            raise InputError(
                f"'{given.name}' has shape {tuple(tensor.shape)}, but the plan is for {whole}{own}: "
                "drop a last, smaller batch, or plan for this size."
            )
        if tensor.dtype != given.dtype:
            raise InputError(
                f"'{given.name}' is {tensor.dtype}, but was captured as {given.dtype}."
            )

    def _whole(self, given: Input) -> tuple[int, ...]:
        return _times(given.shape, given.samples, self.m)

    def _part(self, given: Input) -> tuple[int, ...]:
        return () if given.box is None else _times(given.box.shape, given.samples, self.m)

    def take(self, source: Source, tensors: Mapping[str, Tensor]) -> Tensor:
        """What a source stands for, out of a whole batch or of this rank's part."""
        given = next(i for i in self.inputs if i.name == source.name)
        tensor, micro = tensors[source.name], source.key.micro
        shape, box = given.shape, source.box
        if tuple(tensor.shape) != self._whole(given):
            shape, box = box.shape, Box.full(box.shape)
        if given.samples is not None and self.m > 1:
            tensor = tensor.narrow(
                given.samples, micro * shape[given.samples], shape[given.samples]
            )
        return tensor[box.within(Box.full(shape))]

    def part(self, batch: Sequence[Tensor]) -> list[Tensor]:
        """This rank's part of a whole batch, tensor by tensor."""
        parts = []
        for given, tensor in zip(self.inputs, batch, strict=True):
            if given.box is None:
                parts.append(tensor[:0] if tensor.dim() else tensor)
                continue
            micros = [tensor]
            if given.samples is not None:
                micros = list(tensor.chunk(self.m, given.samples))
            index = given.box.within(Box.full(given.shape))
            own = [t[index] for t in micros]
            parts.append(own[0] if len(own) == 1 else torch.cat(own, given.samples or 0))
        return parts


def _samples(letters: str) -> int | None:
    return letters.index("n") if "n" in letters else None


def _times(shape: Sequence[int], dim: int | None, count: int) -> tuple[int, ...]:
    return tuple(s * count if d == dim else s for d, s in enumerate(shape))
