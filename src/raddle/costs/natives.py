"""Composites that one native call computes where a device has them whole: what that call takes.

A profile has both, the call and the operators that it stands for. Where a tile is whole, the call's seconds
count as those of the composite's main operator, and its others take none. Whether a tile is whole is seen
from that tile alone, as searches ask it of one operator; a run (`run/code.py`) sees all tiles. Both agree
unless a plan tiles the operators of one composite in different ways.

    batch_norm: moments of n, h, w, then the result: whole where a tile has all samples and pixels
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from raddle.graph.box import Box
from raddle.graph.graph import Fused, Graph, Op

KINDS = ("batch_norm", "layer_norm", "rms_norm", "softmax", "log_softmax", "cross_entropy")


class Native(NamedTuple):
    fused: Fused
    main: Op  # the last of those with most dimensions
    ops: tuple[Op, ...]
    summed: frozenset[str]  # names of the dimensions that some operator sums over

    def tile(self, op: Op, box: Box) -> Box:
        """A tile of one of the operators as one of the main; what the one has not, is there in full."""
        sizes = {dim.name: size for dim, size in zip(op.space.dims, box.shape, strict=True)}
        return Box.full([sizes.get(dim.name, dim.size) for dim in self.main.space.dims])

    def part(self, op: Op, box: Box) -> Box:
        """The other way round."""
        sizes = {dim.name: n for dim, n in zip(self.main.space.dims, box.shape, strict=True)}
        return Box.full([sizes.get(dim.name, dim.size) for dim in op.space.dims])

    def whole(self, op: Op, box: Box, bn: str) -> bool:
        """Whether a tile has all that is summed over."""
        if self.fused.kind == "batch_norm" and bn == "local":
            return True
        pairs = zip(op.space.dims, box.shape, strict=True)
        return all(size == dim.size for dim, size in pairs if dim.name in self.summed)

    def runs(self, box: Box) -> bool:
        """Whether torch takes a tile of the main operator: not where statistics are of one number."""
        pairs = zip(self.main.space.dims, box.shape, strict=True)
        return any(size > 1 for dim, size in pairs if dim.name in self.summed)


def natives_of(graph: Graph) -> Mapping[str, Native]:
    """By operator; one that has none of the summed dimensions is small, and stays by itself."""
    found: dict[str, Native] = {}
    for fused in graph.fused:
        if fused.kind not in KINDS:
            continue
        ops = tuple(graph.op(name) for name in fused.ops)
        summed = frozenset(op.space.dims[d].name for op in ops for d in op.space.reduced)
        main = max(reversed(ops), key=lambda op: len(op.space.dims))
        sizes = dict(main.space.dims)
        own = [op for op in ops if summed & {dim.name for dim in op.space.dims}]
        if all(sizes.get(dim.name) == dim.size for op in own for dim in op.space.dims):
            found |= {op.name: Native(fused, main, ops, summed) for op in own}
    return found
