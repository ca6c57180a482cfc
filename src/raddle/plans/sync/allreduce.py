"""`allreduce`: gradients are all-reduced in buckets, and all holders update their copies.

Options: `bf16` or `fp16` compress gradients to this type while they are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from raddle.plans.sync.sync_kind import Sync, SyncKind

WIRE_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}  # option -> type in which gradients are sent


class AllReduce(Sync):
    """Gradients are all-reduced in buckets, and every holder updates its copy."""

    bucketed: ClassVar[bool] = True

    @property
    def allows_overlap(self) -> bool:
        return not self.wire_dtype

    def slice_count(self, elements: int, holders: int) -> int:
        return 1

    def assign_servers(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        return [-1] * len(sizes)  # no servers


def _parse(options: Sequence[str]) -> Sync:
    return AllReduce(wire_dtype=WIRE_DTYPES[options[-1]] if options else "")


KIND = SyncKind("allreduce", tuple(WIRE_DTYPES), ("allreduce", "allreduce:bf16"), _parse)
