"""`allreduce`: gradients are summed in buckets on all holders, which update their copies; :bf16, :fp16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from raddle.plans.sync.sync_kind import Kind, Sync

COMPRESSED = {"bf16": "bfloat16", "fp16": "float16"}


class AllReduce(Sync):
    """Gradients are summed in buckets, and all holders update all of a parameter."""

    bucketed: ClassVar[bool] = True

    @property
    def overlaps(self) -> bool:
        return not self.compressed

    def pieces(self, elements: int, holders: int) -> int:
        return 1

    def assign(self, sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
        return [-1] * len(sizes)


def _read(words: Sequence[str]) -> Sync:
    return AllReduce(compressed=COMPRESSED[words[-1]] if words else "")


KIND = Kind("allreduce", tuple(COMPRESSED), ("allreduce", "allreduce:bf16"), _read)
