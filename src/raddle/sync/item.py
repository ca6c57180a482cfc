"""Defines an item, the unit of synchronisation: a slice of a parameter or a bundle of slices.

A parameter is cut along its first dimension, so a slice is some rows of it, such as weight[0:10]. Small
slices are joined in a bundle (program/parameter_slices.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Item(NamedTuple):
    """Some rows of one parameter, contiguous in memory; or of several parameters (item_rows.py)."""

    number: int  # the index in the list of items, which is the same on all ranks
    name: str  # "features.0.weight[0:10]"; of a bundle: see bundle_name
    workers: tuple[int, ...]  # ranks that have a copy and submit a gradient
    # The rank that sums gradients, updates the rows and sends them back; -1: every worker updates them.
    server: int
    elements: int
    dtype: torch.dtype
    priority: int  # the smallest is the most urgent: the order of first use in the forward

    @property
    def nbytes(self) -> int:
        """The bytes of the gradient or of the rows in a message."""
        return self.elements * self.dtype.itemsize


def slice_name(parameter: str, rows: slice | None) -> str:
    """Returns the name of some rows of a parameter. rows is None for a parameter without dimensions."""
    return parameter if rows is None else f"{parameter}[{rows.start}:{rows.stop}]"


def bundle_name(slices: Sequence[str]) -> str:
    """Returns the name of an item: its first slice's name and, of a bundle, "and 3 more"."""
    more = f" and {len(slices) - 1} more" if len(slices) > 1 else ""
    return f"{slices[0]}{more}"


def select_rows(tensor: Tensor, rows: slice | None) -> Tensor:
    """Returns a view of some rows of a tensor that has a parameter's shape; None: all rows."""
    return tensor if rows is None else tensor[rows]


class UpdateEvent(NamedTuple):
    """An update of an item at its server."""

    item: int  # its number
    worker: int  # the rank whose gradient was applied; -1: the sum over all workers
    clock: int  # how many gradients of the item that worker (if -1: each worker) had submitted
    version: int  # how many updates the item has had, including this one


def check_items(items: Sequence[Item], size: int, *, servers: bool = True) -> None:
    """Raises ValueError for invalid items. servers: whether each item needs a server among the ranks."""
    for index, item in enumerate(items):
        if item.number != index:
            raise ValueError(
                f"item '{item.name}' has number {item.number} at place {index}: number items "
                "by their place in the list"
            )
        if not item.workers or len(set(item.workers)) < len(item.workers):
            raise ValueError(
                f"item '{item.name}' has workers {item.workers}: name one or more ranks, each once"
            )
        ranks = (*item.workers, item.server) if servers else item.workers
        invalid = [rank for rank in ranks if not 0 <= rank < size]
        if invalid:
            raise ValueError(
                f"item '{item.name}' names rank {invalid[0]} and there are {size} ranks: "
                f"choose from 0 to {size - 1}"
            )


def check_rows(rank: int, item: Item, parts: Sequence[Tensor], what: str) -> None:
    """Raises ValueError if tensors do not fit an item. what: "rows" or "a gradient", for the message.

    parts: one tensor for all slices of the item, or one for each.
    """
    elements = sum(rows.numel() for rows in parts)
    for rows in parts:
        if elements != item.elements or rows.dtype != item.dtype or not rows.is_contiguous():
            raise ValueError(
                f"rank {rank} has {what} of '{item.name}' with {elements} elements of {rows.dtype}, "
                f"strides {rows.stride()}: {item.elements} contiguous ones of {item.dtype} are needed"
            )


def read_payload(rank: int, source: int, item: Item, payload: Tensor) -> Tensor:
    """Returns a view of a flat uint8 tensor in the item's dtype; raises ValueError for a wrong length."""
    if payload.numel() != item.nbytes:
        raise ValueError(
            f"rank {rank} got {payload.numel()} bytes of '{item.name}' from rank {source} and "
            f"{item.nbytes} are needed: see whether all ranks have the same plan"
        )
    return payload.view(item.dtype)


def describe_items(items: Sequence[Item]) -> str:
    """Returns the first item's name and the number of others, as in "'fc.bias' (and 2 more)"."""
    more = f" (and {len(items) - 1} more)" if len(items) > 1 else ""
    return f"'{items[0].name}'{more}"
