"""What is synchronised at once: a slice of a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Item(NamedTuple):
    """Rows of one parameter, in contiguous memory."""

    number: int  # the same on all ranks; the index in the list
    name: str  # "features.0.weight[0:10]"
    workers: tuple[int, ...]  # ranks that hold it and give a gradient
    server: int  # the rank that sums gradients, updates the rows and sends them back; -1: all workers do
    elements: int
    dtype: torch.dtype
    priority: int  # smaller is more urgent: order of first use in the forward
    returned: bool = True  # whether the home sends updated rows to its workers

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize


def slice_name(parameter: str, rows: slice | None) -> str:
    """The name of some rows of a parameter; None: of one that has no rows, as it is a number."""
    return parameter if rows is None else f"{parameter}[{rows.start}:{rows.stop}]"


def select_rows(tensor: Tensor, rows: slice | None) -> Tensor:
    """Some rows of what has a parameter's shape."""
    return tensor if rows is None else tensor[rows]


class UpdateEvent(NamedTuple):
    """An update at the home."""

    item: int
    worker: int  # whose gradient it was; -1: the sum over all workers
    clock: int
    version: int  # how many updates the item has had with this one


def check_items(items: Sequence[Item], size: int, *, servers: bool = True) -> None:
    """Raises ValueError for a list that no rank could follow; without `homes`, all workers update."""
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


def check_rows(rank: int, item: Item, rows: Tensor, what: str) -> None:
    """Raises ValueError for a tensor that is not an item's rows, or a gradient of them."""
    if rows.numel() != item.elements or rows.dtype != item.dtype or not rows.is_contiguous():
        raise ValueError(
            f"rank {rank} has {what} of '{item.name}' with {rows.numel()} elements of {rows.dtype}, "
            f"strides {rows.stride()}: {item.elements} contiguous ones of {item.dtype} are needed"
        )


def read_payload(rank: int, source: int, item: Item, payload: Tensor) -> Tensor:
    """The values in a flat uint8 tensor; raises ValueError for a wrong length."""
    if payload.numel() != item.nbytes:
        raise ValueError(
            f"rank {rank} got {payload.numel()} bytes of '{item.name}' from rank {source} and "
            f"{item.nbytes} are needed: see whether all ranks have the same plan"
        )
    return payload.view(item.dtype)


def describe_items(items: Sequence[Item]) -> str:
    """The first by name, and how many more."""
    more = f" (and {len(items) - 1} more)" if len(items) > 1 else ""
    return f"'{items[0].name}'{more}"
