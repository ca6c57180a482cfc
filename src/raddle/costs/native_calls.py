"""Composites that one native call computes where a device has them whole: what that call takes.

A profile has both, the call and the operators that it stands for. Where a tile is whole, the call's seconds
count as those of the composite's main operator, and its others take none; a recurrence's are divided among
its operators by their work, as plans have its steps on different devices.

A run makes one call only where a device's tiles of all operators belong together and nothing is sent
between them (runtime/code_generator.py, program/segments.py): steps of a recurrent layer that come from another
device, or go to one, are computed one by one. Simulation and evaluator know all tiles and count so
(`tiled_alike`); searches that ask for one operator take the others to be tiled alike.

    batch_norm: moments of n, h, w, then the result: whole where a tile has all samples and pixels
    lstm: steps and gates of a layer: whole where a tile has all but samples
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from raddle.graph.box import Box
from raddle.graph.graph import FusedCall, Graph, Op
from raddle.graph.ops import work
from raddle.graph.ops.fused import SAMPLES_ONLY
from raddle.plans.tiling import Tiling


class NativeCall(NamedTuple):
    fused: FusedCall
    main: Op  # the last of those with most dimensions
    ops: tuple[Op, ...]
    shared_dims: frozenset[str]  # names of dimensions that are the same in all operators
    splittable_dims: frozenset[str]  # those of them that may be split
    fingerprint: str  # tells calls apart whose main operators are alike
    time_shares: Mapping[str, float]  # by operator, what counts as its part of the call's seconds
    neighbours: tuple[str, ...]  # operators that give or take something while others of it compute
    has_parameters: bool  # whether it has parameters

    def main_tile(self, op: Op, box: Box) -> Box:
        """A tile of one of the operators as one of the main; what the one has not, is there in full."""
        return self._convert_tile(self.main, op, box)

    def op_tile(self, op: Op, box: Box) -> Box:
        """The other way round."""
        return self._convert_tile(op, self.main, box)

    def _convert_tile(self, other: Op, op: Op, box: Box) -> Box:
        pairs = zip(op.space.dims, box.shape, strict=True)
        sizes = {dim.name: size for dim, size in pairs if dim.name in self.shared_dims}
        return Box.full([sizes.get(dim.name, dim.size) for dim in other.space.dims])

    def is_whole(self, op: Op, box: Box, bn: str) -> bool:
        """Whether a tile has all of what may not be split."""
        if self.fused.kind == "batch_norm" and bn == "local":
            return True
        pairs = zip(op.space.dims, box.shape, strict=True)
        return all(size == dim.size for dim, size in pairs if dim.name not in self.splittable_dims)

    def accepts(self, box: Box) -> bool:
        """Whether torch takes a tile of the main operator: not where statistics are of one number."""
        pairs = zip(self.main.space.dims, box.shape, strict=True)
        return any(size > 1 for dim, size in pairs if dim.name not in self.splittable_dims)


def tiling_signature(op: Op, tiling: Tiling) -> object:
    """Equal for operators of a composite that are tiled alike: by device, parts of dimensions by name."""
    dims = op.space.dims
    return frozenset(
        (tile.device, frozenset(
            (dim.name, lo, hi)
            for dim, lo, hi in zip(dims, tile.box.lo, tile.box.hi, strict=True)
            if hi - lo < dim.size
        ))
        for tile in tiling.tiles
    )  # fmt: skip


def applicable_native_calls(graph: Graph, tiles: Mapping[str, Tiling]) -> Mapping[str, NativeCall]:
    """Those whose operators are: what a plan can run as one call."""
    calls = find_native_calls(graph)
    alike = {
        n.main.name: len(
            {tiling_signature(graph.op(i), tiles[i]) for i in (*n.time_shares, *n.neighbours)}
        )
        == 1
        for n in {n.main.name: n for n in calls.values()}.values()
    }
    return {name: call for name, call in calls.items() if alike[call.main.name]}


def find_native_calls(graph: Graph) -> Mapping[str, NativeCall]:
    """By operator; one that has nothing of what a call needs whole is small, and stays by itself."""
    calls: dict[str, NativeCall] = {}
    for fused in graph.fused_calls:
        ops = tuple(graph.op(name) for name in fused.ops)
        main = max(reversed(ops), key=lambda op: len(op.space.dims))
        if fused.kind in SAMPLES_ONLY:
            members = [op for op in ops if "n" in _dim_names(op)]
            shared = splittable = frozenset({"n"})
            time_shares, neighbours = _work_fractions(members), _neighbours(graph, fused)
        else:
            summed = {op.space.dims[d].name for op in ops for d in op.space.reduced_dims}
            members = [op for op in ops if summed & _dim_names(op)]
            shared = frozenset().union(*map(_dim_names, members))
            splittable = shared - summed
            time_shares, neighbours = {op.name: float(op is main) for op in members}, ()
        sizes = dict(main.space.dims)
        dims = [dim for op in members for dim in op.space.dims if dim.name in shared]
        if all(sizes.get(dim.name) == dim.size for dim in dims):
            fingerprint = _fingerprint(graph, fused)
            roles = {graph.values[i].role for i in fused.inputs if i is not None}
            has_parameters = "parameter" in roles
            call = NativeCall(
                fused,
                main,
                ops,
                shared,
                splittable,
                fingerprint,
                time_shares,
                neighbours,
                has_parameters,
            )
            calls |= {op.name: call for op in members}
    return calls


def _dim_names(op: Op) -> set[str]:
    return {dim.name for dim in op.space.dims}


def _work_fractions(ops: Sequence[Op]) -> Mapping[str, float]:
    amounts = [work(op, op.space.full) for op in ops]
    totals = [float(amount.flops + sum(amount.elements)) for amount in amounts]
    return {op.name: total / sum(totals) for op, total in zip(ops, totals, strict=True)}


def _neighbours(graph: Graph, fused: FusedCall) -> tuple[str, ...]:
    inside, outputs = set(fused.ops), {name for name in fused.outputs if name is not None}
    return tuple(
        op.name for op in graph.ops
        if op.name not in inside
        and (outputs & {*op.inputs} or not {*fused.inputs}.isdisjoint(op.outputs))
    )  # fmt: skip


def _fingerprint(graph: Graph, fused: FusedCall) -> str:
    """An LSTM's last product is the same however many steps there are."""
    shapes = [None if name is None else graph.values[name].shape for name in fused.inputs]
    identity = (fused.kind, sorted(fused.attrs.items()), shapes)
    return f"{fused.kind} {hashlib.sha256(repr(identity).encode()).hexdigest()[:8]}"
