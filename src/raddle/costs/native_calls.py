"""Native calls: divides the measured time of one PyTorch call among the several operators that it replaces.

The graph holds batch norm, LSTM and others as several operators (a composite, graph.FusedCall). PyTorch
has one native call for all of them. A device can make the call if its tiles are whole in the dimensions
that the call may not split:

    batch_norm   computes mean and variance over n, h, w, then the result: a tile needs all n, h and w
    lstm         computes time steps and gates of a layer: only the samples may be split

A profile has measurements of the call and of the single operators. If a tile is whole, the seconds of the
call count for the composite's main operator, and the other operators take no time. If only samples may be
split, as in a recurrent layer, the seconds are divided among the operators by their work instead: plans may
place the steps of such a layer on different devices.

A run makes the call only if a device's tiles of all operators match and no message passes between them
(runtime/code_generator.py, program/segments.py). The simulation and the fast simulation (simulation/fast)
know all tiles and check this (`applicable_native_calls`, `tiling_signature`). A search that asks for one
operator assumes that the others match.
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
    """A composite of a graph that one native call can compute."""

    fused: FusedCall  # the record in the graph: which operators the call replaces
    # The operator with the most dimensions, the last one if several have as many. A tile of it stands for
    # the whole call: in a profile, the call's seconds are found by this tile.
    main: Op
    ops: tuple[Op, ...]  # all operators of the composite
    # Names of the dimensions by which tiles of the operators match: "n", if only samples may be split;
    # else all dimensions of the operators that share the time.
    shared_dims: frozenset[str]
    splittable_dims: frozenset[str]  # the shared dimensions that a tile may split
    fingerprint: str  # distinguishes calls with equal main operators
    time_shares: Mapping[str, float]  # by operator, its share of the call's seconds
    # operators before and after the composite, if only samples may be split; else empty
    neighbours: tuple[str, ...]
    has_parameters: bool  # whether a parameter is among the inputs of the call

    def main_tile(self, op: Op, box: Box) -> Box:
        """Returns the tile of the main operator that matches `box`, a tile of `op`.

        Only its shape matters, so it starts at 0. Dimensions that the two operators do not share are taken
        in full.
        """
        return self._convert_tile(self.main, op, box)

    def op_tile(self, op: Op, box: Box) -> Box:
        """Returns the tile of `op` that matches `box`, a tile of the main operator."""
        return self._convert_tile(op, self.main, box)

    def _convert_tile(self, target: Op, source: Op, box: Box) -> Box:
        """Returns a tile of `target`, from 0 on, with the shape that matches `box`, a tile of `source`."""
        pairs = zip(source.space.dims, box.shape, strict=True)
        sizes = {dim.name: size for dim, size in pairs if dim.name in self.shared_dims}
        return Box.full([sizes.get(dim.name, dim.size) for dim in target.space.dims])

    def is_whole(self, op: Op, box: Box, bn: str) -> bool:
        """Returns whether a tile is whole in all dimensions that the call may not split.

        bn: the batch-norm statistics of the plan. With "local", each device computes those of its own
        samples, so every tile counts as whole; "global" are those of all samples.
        """
        if self.fused.kind == "batch_norm" and bn == "local":
            return True
        pairs = zip(op.space.dims, box.shape, strict=True)
        return all(size == dim.size for dim, size in pairs if dim.name not in self.splittable_dims)

    def accepts(self, box: Box) -> bool:
        """Returns whether PyTorch accepts a tile of the main operator.

        It refuses to take statistics over a single element.
        """
        pairs = zip(self.main.space.dims, box.shape, strict=True)
        return any(size > 1 for dim, size in pairs if dim.name not in self.splittable_dims)


def tiling_signature(op: Op, tiling: Tiling) -> object:
    """Returns a key that is equal for operators of a composite whose tilings match.

    It holds, by device, the ranges of the dimensions that are split, by name.
    """
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
    """Returns, by operator, the native call that a plan can make.

    It can make a call if the call's operators and their neighbours are tiled alike. tiles: by operator, its
    tiling in the plan.
    """
    calls = find_native_calls(graph)
    alike = {  # by main operator, whether the tilings of its composite match
        call.main.name: len(
            {
                tiling_signature(graph.op(name), tiles[name])
                for name in (*call.time_shares, *call.neighbours)
            }
        )
        == 1
        for call in {call.main.name: call for call in calls.values()}.values()
    }
    return {name: call for name, call in calls.items() if alike[call.main.name]}


def find_native_calls(graph: Graph) -> Mapping[str, NativeCall]:
    """Returns, by operator, the native call that it is part of.

    Small operators are left out: if only samples may be split, those without a sample dimension; else those
    that have none of the summed dimensions. `members`, in the code, are the other operators, which share
    the time. There is no native call if a shared dimension has another size in a member than in the main
    operator.
    """
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
    """Returns, by operator, its fraction of the total work (FLOP plus elements)."""
    amounts = [work(op, op.space.full) for op in ops]
    totals = [float(amount.flops + sum(amount.elements)) for amount in amounts]
    return {op.name: total / sum(totals) for op, total in zip(ops, totals, strict=True)}


def _neighbours(graph: Graph, fused: FusedCall) -> tuple[str, ...]:
    """Returns the operators that produce an input of a composite or read an output of it."""
    inside, outputs = set(fused.ops), {name for name in fused.outputs if name is not None}
    return tuple(
        op.name for op in graph.ops
        if op.name not in inside
        and (outputs & {*op.inputs} or not {*fused.inputs}.isdisjoint(op.outputs))
    )  # fmt: skip


def _fingerprint(graph: Graph, fused: FusedCall) -> str:
    """Returns a text that identifies the call: its kind and a hash of its attributes and input shapes.

    The main operator does not suffice: two LSTMs over 10 and over 20 time steps, with layers of the same
    width, have equal main operators, but their native calls take different times.
    """
    shapes = [None if name is None else graph.values[name].shape for name in fused.inputs]
    identity = (fused.kind, sorted(fused.attrs.items()), shapes)
    return f"{fused.kind} {hashlib.sha256(repr(identity).encode()).hexdigest()[:8]}"
