"""`allreduce`: gradients are all-reduced in buckets, and all holders update their copies.

Options: `bf16` or `fp16` compress gradients to this type while they are sent. With `after` they are
all-reduced when the whole backward has ended, not during it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from raddle.plans.sync.sync_kind import AFTER, Sync, SyncKind, split_after

WIRE_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}  # option -> type in which gradients are sent


class AllReduce(Sync):
    """Gradients are all-reduced in buckets, and every holder updates its copy."""

    bucketed: ClassVar[bool] = True

    @property
    def allows_overlap(self) -> bool:
        # Steps that overlap all-reduce each gradient alone; buckets in a narrower dtype are not made there.
        return not self.wire_dtype and not self.after_backward

    def slice_count(self, elements: int, holders: int) -> int:
        return 1

    def assign_servers(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        return [-1] * len(sizes)  # no servers


def _parse(options: Sequence[str]) -> Sync:
    dtypes, after_backward = split_after(options)
    wire_dtype = WIRE_DTYPES[dtypes[-1]] if dtypes else ""
    return AllReduce(wire_dtype=wire_dtype, after_backward=after_backward)


KIND = SyncKind(
    "allreduce", (*WIRE_DTYPES, AFTER), ("allreduce", "allreduce:bf16", "allreduce:after"), _parse
)
