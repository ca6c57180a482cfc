"""Simple partitions of filters and channels: baselines of Eserol's thesis (docs/papers.md), 5.1.2 to 5.1.4.

    horizontal    the filters of each layer are divided equally over the parts
    incremental   the filters, layer by layer, fill one part up to its share of the work, then the next part
    channels      the same with pairs of (filter, channel), so that a filter may be cut between two parts

A part is the work of one device. Differs from the thesis: work is in seconds of the cost model, forward and
backward; the share of a part is in proportion to its device's speed; operators without filters, which the
thesis does not place, are split like the channels that they read.
"""

# c: filters (channels of the output), k: channels of the input

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from raddle.clusters import Cluster, Device
from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op
from raddle.plans.tiling import Irregular, Tile, Tiling
from raddle.searches.baselines.model import model
from raddle.searches.grids import (
    Tiles,
    batch_independent,
    copies,
    dim_of,
    place_batch_independent,
    size_of,
    split,
)
from raddle.searches.operator_times import device_speeds, whole_operator_seconds


def horizontal(graph: Graph, cluster: Cluster) -> Tiles:
    """Returns tiles that divide the filters of every layer equally: model parallelism (model.py)."""
    return model(graph, cluster)


def incremental(graph: Graph, cluster: Cluster) -> Tiles:
    """Returns tiles in which the filters, in order, fill one part after the other."""
    return _partition(graph, cluster, channels=False)


def channel_incremental(graph: Graph, cluster: Cluster) -> Tiles:
    """Returns tiles in which the pairs of (filter, channel), in order, fill one part after the other."""
    return _partition(graph, cluster, channels=True)


# -- layers and parts ----------------------------------------------------------------------------


class FilterRun(NamedTuple):
    """Consecutive units of a layer in one part; a unit is a filter, or a (filter, channel) pair."""

    part: int
    first: int  # index of the first unit
    last: int  # index after the last unit


@dataclass(frozen=True)
class FilterLayer:
    """A layer with filters: operators that share a weight, so that they are split in the same way."""

    ops: tuple[Op, ...]
    filters: int  # number of filters
    channels: int  # number of channels of a filter
    work: float  # seconds on the first device


Seconds = Callable[[Op, Device], float]  # of a whole operator on a device


def _layers(graph: Graph, cluster: Cluster, seconds: Seconds) -> list[FilterLayer]:
    """Returns all layers with filters, in the order of their first use."""
    ops_of_layer: dict[tuple[str, int], list[Op]] = {}
    for op in graph.ops:
        c = dim_of(op, "c")
        # "P": a dimension of a parameter. Role "frozen": a parameter that is not trained.
        if c is not None and graph.dim_kinds(op)[c] == "P" and op.space.reduced_dims:
            weight = next(i for i in op.inputs if graph.values[i].role in ("parameter", "frozen"))
            ops_of_layer.setdefault((weight, op.space.dims[c].size), []).append(op)
    return [
        FilterLayer(
            tuple(ops),
            filters,
            min(size_of(op, "k") for op in ops),
            sum(seconds(op, cluster.devices[0]) for op in ops),
        )
        for (_, filters), ops in ops_of_layer.items()
    ]


def _shares(graph: Graph, cluster: Cluster, total: float) -> list[float]:
    """Returns the work that each part should get, in proportion to its device's speed."""
    device_speed = device_speeds(graph, cluster)
    total_speed = sum(device_speed)
    return [total * speed / total_speed for speed in device_speed]


def assign_runs(
    layers: Sequence[tuple[int, float]], shares: Sequence[float]
) -> list[list[FilterRun]]:
    """Returns the runs of each layer: its units fill one part after the other.

    layers: (number of units, work) of each layer. shares: the work that each part should get.

    >>> first, second = assign_runs([(4, 4.0), (2, 4.0)], [3.0, 5.0])
    >>> first
    [FilterRun(part=0, first=0, last=3), FilterRun(part=1, first=3, last=4)]
    >>> second
    [FilterRun(part=1, first=0, last=2)]
    """
    result = []
    part, room = 0, shares[0]
    for count, work in layers:
        work_per_unit, first, runs = work / count, 0, []
        while first < count:
            if room <= 1e-9 * shares[part] and part < len(shares) - 1:  # full, up to rounding
                part, room = part + 1, shares[part + 1]
            # Units that still fit this part; the last part takes all remaining units.
            fitting = (
                count if part == len(shares) - 1 else max(1, math.ceil(room / work_per_unit - 1e-9))
            )
            last = min(count, first + fitting)
            runs.append(FilterRun(part, first, last))
            room -= (last - first) * work_per_unit
            first = last
        result.append(runs)
    return result


# -- tiles ---------------------------------------------------------------------------------------


class ChannelLayout(NamedTuple):
    """How the channels of a value are divided over the parts."""

    cuts: tuple[int, ...]  # cut points of the channels, from 0 to their number
    parts: tuple[int, ...]  # the part that has the channels between two cut points


def _partition(graph: Graph, cluster: Cluster, *, channels: bool) -> Tiles:
    """Returns the tiles of an incremental partition.

    channels: True: a unit is a (filter, channel) pair; False: a unit is a filter.
    """
    seconds = whole_operator_seconds(graph)
    layers = _layers(graph, cluster, seconds)
    shares = _shares(graph, cluster, sum(layer.work for layer in layers))
    units_per_filter = [layer.channels if channels else 1 for layer in layers]
    runs_by_layer = assign_runs(
        [
            (layer.filters * u, layer.work)
            for layer, u in zip(layers, units_per_filter, strict=True)
        ],
        shares,
    )
    runs = {  # u: units per filter
        op.name: (layer_runs, u)
        for layer, layer_runs, u in zip(layers, runs_by_layer, units_per_filter, strict=True)
        for op in layer.ops
    }
    return _tile_operators(graph, runs)


def _tile_operators(graph: Graph, runs: Mapping[str, tuple[list[FilterRun], int]]) -> Tiles:
    """Returns tiles: layers with filters get theirs from `runs`, other operators from what they read.

    runs: for each operator of a layer, its runs and the number of units in a filter.
    """
    tiles: Tiles = {}
    layouts: dict[str, ChannelLayout] = {}  # by value
    independent = batch_independent(graph)
    previous_part = 0  # the part with the last channels of the operator before
    for op in graph.ops:
        if op.name in independent:
            continue
        if op.name in runs:
            op_runs, units = runs[op.name]
            tiles[op.name], layout = (
                _filter_tiles(op, op_runs, units),
                _channel_layout(op_runs, units),
            )
        else:
            layout = _read_layout(op, layouts) or ChannelLayout(
                (0, size_of(op, "c")), (previous_part,)
            )
            tiles[op.name] = _channel_tiles(op, layout)
        previous_part = layout.parts[-1]
        layouts.update(dict.fromkeys(op.outputs, layout))
    # Operators that read only parameters, buffers and constants: on the devices that read their results.
    place_batch_independent(graph, tiles, lambda op: copies(op, [0]))
    return tiles


def _channel_tiles(op: Op, layout: ChannelLayout) -> Tiling:
    """Returns the tiles of an operator without filters; without channels it is whole, on the last part."""
    c = dim_of(op, "c")
    if c is None:
        return copies(op, layout.parts[-1:])
    return split(op, {c: layout.cuts}, layout.parts)


def _filter_tiles(op: Op, runs: Sequence[FilterRun], units: int) -> Tiling:
    """Returns the tiles of a layer with filters.

    If runs cut filters, a run is up to three boxes: the end of a filter, whole filters, the start of one.
    units: units per filter.
    """
    c, k = dim_of(op, "c"), dim_of(op, "k")
    assert c is not None
    if all(run.first % units == 0 for run in runs):
        cuts = (0, *(run.last // units for run in runs))
        return split(op, {c: cuts}, [run.part for run in runs])
    assert k is not None
    tiles = []
    for run in runs:
        for (c0, c1), (k0, k1) in _rectangles(run.first, run.last, units):
            lo, hi = list(op.space.full.lo), list(op.space.full.hi)
            lo[c], hi[c], lo[k], hi[k] = c0, c1, k0, k1
            tiles.append(Tile(Box(tuple(lo), tuple(hi)), run.part))
    return Irregular(tuple(tiles))


def _rectangles(first: int, last: int, width: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Returns rectangles (range of c, range of k) that cover the units from `first` to before `last`.

    A unit is a pair (c, k); units are numbered in row-major order. width: the number of different k.

    >>> _rectangles(2, 9, 4)
    [((0, 1), (2, 4)), ((1, 2), (0, 4)), ((2, 3), (0, 1))]
    """
    (c0, k0), (c1, k1) = divmod(first, width), divmod(last, width)
    if c0 == c1:
        return [((c0, c0 + 1), (k0, k1))]
    rectangles = []
    if k0:
        rectangles.append(((c0, c0 + 1), (k0, width)))
        c0 += 1
    if c0 < c1:
        rectangles.append(((c0, c1), (0, width)))
    if k1:
        rectangles.append(((c1, c1 + 1), (0, k1)))
    return rectangles


# -- channels of the other operators -------------------------------------------------------------


def _channel_layout(runs: Sequence[FilterRun], units: int) -> ChannelLayout:
    """Returns the layout of a layer's output; a filter that is cut goes to the part that has more of it."""
    cuts = [0, *(round(run.last / units) for run in runs)]
    return join_ranges(cuts, [run.part for run in runs])


def _read_layout(op: Op, layouts: Mapping[str, ChannelLayout]) -> ChannelLayout | None:
    """Returns the layout of an operator's output, from those of its operands; None if they have none."""
    read = [layouts[i] for i in op.inputs if i in layouts]
    size = size_of(op, "c")
    if not read or dim_of(op, "c") is None:
        return read[0] if read else None
    if op.kind == "cat" and sum(layout.cuts[-1] for layout in read) == size:
        cuts, parts = [0], list[int]()
        for layout in read:
            cuts += [cuts[-1] + cut for cut in layout.cuts[1:]]
            parts += layout.parts
        return join_ranges(cuts, parts)
    scale = size / read[0].cuts[-1]  # after flatten, a channel has several features
    return join_ranges([round(cut * scale) for cut in read[0].cuts], read[0].parts)


def join_ranges(cuts: Sequence[int], parts: Sequence[int]) -> ChannelLayout:
    """Returns a layout without empty ranges; adjacent ranges of the same part become one."""
    points, joined_parts = [0], list[int]()
    for (a, b), part in zip(pairwise(cuts), parts, strict=True):
        if a == b:
            continue
        if joined_parts and joined_parts[-1] == part:
            points[-1] = b
        else:
            points.append(b)
            joined_parts.append(part)
    return ChannelLayout(tuple(points), tuple(joined_parts))
