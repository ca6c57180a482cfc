"""Regions put together from pieces: settled once from boxes, so that running touches tensors alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from raddle.graph.box import Box

Index = tuple[slice, ...]
AssembleRegion = Callable[..., Tensor]  # the tensors of the chosen pieces -> the region


def overlapping_boxes(boxes: Sequence[Box], region: Box) -> list[int]:
    """The numbers of the pieces that a region is made of; they are disjoint and cover it."""
    indices = [i for i, box in enumerate(boxes) if not (box & region).empty]
    covered = sum((boxes[i] & region).volume for i in indices)
    assert covered == region.volume, f"{covered} of {region.volume} elements of {region} are there"
    return indices


def region_assembler(boxes: Sequence[Box], region: Box) -> AssembleRegion | None:
    """The function that makes a region of the pieces that overlap it; None: it is the one piece.

    >>> halves = [Box((0, 0), (2, 3)), Box((2, 0), (4, 3))]
    >>> gather(halves, Box((1, 0), (4, 3)))(torch.zeros(2, 3), torch.ones(2, 3)).shape
    torch.Size([3, 3])
    """
    if len(boxes) == 1:
        if boxes[0] == region:
            return None
        index = region.slices_within(boxes[0])
        return lambda tensor: tensor[index]
    parts = [(box & region).slices_within(box) for box in boxes]
    overlaps = [box & region for box in boxes]
    dim = _concat_dim(overlaps, region)
    if dim is not None:
        return _concatenator(overlaps, parts, dim)
    places = [common.slices_within(region) for common in overlaps]
    return _copier(region.shape, parts, places)


def _concat_dim(overlaps: Sequence[Box], region: Box) -> int | None:
    """The one dimension in which pieces differ from the region, if there is one."""
    differing = {
        d
        for c in overlaps
        for d in range(len(region.lo))
        if (c.lo[d], c.hi[d]) != (region.lo[d], region.hi[d])
    }
    return differing.pop() if len(differing) == 1 else None


def _concatenator(overlaps: Sequence[Box], parts: Sequence[Index], dim: int) -> AssembleRegion:
    order = sorted(range(len(overlaps)), key=lambda i: overlaps[i].lo[dim])

    def join(*tensors: Tensor) -> Tensor:
        return torch.cat([tensors[i][parts[i]] for i in order], dim)

    return join


def _copier(
    shape: tuple[int, ...], piece_indices: Sequence[Index], region_indices: Sequence[Index]
) -> AssembleRegion:
    def copy_pieces(*tensors: Tensor) -> Tensor:
        result = tensors[0].new_zeros(shape)
        for tensor, piece_index, region_index in zip(
            tensors, piece_indices, region_indices, strict=True
        ):
            result[region_index] = tensor[piece_index]
        return result

    return copy_pieces
