"""Assembles a region of a tensor from the pieces that a device holds.

A region is a box that an operator or a message reads; a piece is a box with its tensor. The places to cut
and to join are worked out once, from the boxes. The returned function then only cuts and joins tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from raddle.graph.box import Box

Index = tuple[slice, ...]
AssembleRegion = Callable[..., Tensor]  # takes the tensors of the pieces, returns the region


def overlapping_boxes(boxes: Sequence[Box], region: Box) -> list[int]:
    """Returns the indices of the boxes that overlap a region; they must be disjoint and cover it."""
    indices = [i for i, box in enumerate(boxes) if not (box & region).empty]
    covered = sum((boxes[i] & region).volume for i in indices)
    assert covered == region.volume, f"{covered} of {region.volume} elements of {region} are there"
    return indices


def region_assembler(boxes: Sequence[Box], region: Box) -> AssembleRegion | None:
    """Returns the function that assembles a region from pieces with these boxes.

    It returns None if there is one piece, which is the region.

    >>> halves = [Box((0, 0), (2, 3)), Box((2, 0), (4, 3))]
    >>> region_assembler(halves, Box((1, 0), (4, 3)))(torch.zeros(2, 3), torch.ones(2, 3)).shape
    torch.Size([3, 3])
    """
    if len(boxes) == 1:
        if boxes[0] == region:
            return None
        index = region.slices_within(boxes[0])
        return lambda tensor: tensor[index]
    piece_indices = [(box & region).slices_within(box) for box in boxes]
    overlaps = [box & region for box in boxes]
    dim = _concat_dim(overlaps, region)
    if dim is not None:
        return _concatenator(overlaps, piece_indices, dim)
    region_indices = [overlap.slices_within(region) for overlap in overlaps]
    return _copier(region.shape, piece_indices, region_indices)


def _concat_dim(overlaps: Sequence[Box], region: Box) -> int | None:
    """Returns the dimension along which the overlaps can be concatenated to the region, or None."""
    differing = {
        d
        for overlap in overlaps
        for d in range(len(region.lo))
        if (overlap.lo[d], overlap.hi[d]) != (region.lo[d], region.hi[d])
    }
    return differing.pop() if len(differing) == 1 else None


def _concatenator(
    overlaps: Sequence[Box], piece_indices: Sequence[Index], dim: int
) -> AssembleRegion:
    """Returns a function that concatenates the overlaps along one dimension."""
    order = sorted(range(len(overlaps)), key=lambda i: overlaps[i].lo[dim])

    def join(*tensors: Tensor) -> Tensor:
        return torch.cat([tensors[i][piece_indices[i]] for i in order], dim)

    return join


def _copier(
    shape: tuple[int, ...], piece_indices: Sequence[Index], region_indices: Sequence[Index]
) -> AssembleRegion:
    """Returns a function that copies the overlaps into a new tensor."""

    def copy_pieces(*tensors: Tensor) -> Tensor:
        result = tensors[0].new_zeros(shape)
        for tensor, piece_index, region_index in zip(
            tensors, piece_indices, region_indices, strict=True
        ):
            result[region_index] = tensor[piece_index]
        return result

    return copy_pieces
