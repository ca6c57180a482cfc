"""Layer-wise model parallelism: each device has a run of consecutive layers, which are not split.

The load of a device is the time of its layers. The runs minimise the largest load of a device. If a load
limit can be met at all, it is met by giving each device in turn as many layers as it can take. So bisection
finds the smallest limit; it is exact, because loads are whole nanoseconds. The runs are on the devices in
the order of the cluster.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby

from raddle.clusters import Cluster
from raddle.graph.graph import Graph, Op
from raddle.searches.grids import Tiles, copies, place_batch_independent
from raddle.searches.operator_times import whole_operator_seconds

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def layerwise(graph: Graph, cluster: Cluster) -> Tiles:
    """Returns tiles with consecutive layers on each device; the largest load is as small as possible."""
    layers = [list(ops) for _, ops in groupby(graph.ops, key=_layer_name)]
    loads = layer_loads(graph, layers, cluster)
    tiles: Tiles = {}
    device_of: dict[str, int] = {}
    for (first, last), device in zip(
        balanced_runs(loads), range(len(cluster.devices)), strict=True
    ):
        for op in (op for ops in layers[first:last] for op in ops):
            device_of[op.name] = device
            tiles[op.name] = copies(op, [device])  # a single copy: the whole operator on one device
    # Operators that read only parameters, buffers and constants: on the devices that read their results.
    place_batch_independent(graph, tiles, lambda op: copies(op, [device_of[op.name]]))
    return tiles


def _layer_name(op: Op) -> str:
    """Returns the name of an operator's layer.

    A composite, such as batch norm, is one layer; but a stacked RNN, also a composite, has several.
    """
    # The names of a stacked RNN's operators go on with .l0, .l1 and so on (r: reverse direction).
    part = re.match(r"\.l\d+(?=r?\.)", op.name.removeprefix(op.layer))
    return op.layer + part[0] if part and op.composite_kind in RECURRENT else op.layer


def layer_loads(graph: Graph, layers: Sequence[Sequence[Op]], cluster: Cluster) -> list[list[int]]:
    """Returns nanoseconds of forward and backward, as [device][layer]. Devices of one kind share a list."""
    seconds = whole_operator_seconds(graph)
    by_kind: dict[str, list[int]] = {}
    for device in cluster.devices:
        if device.kind not in by_kind:
            by_kind[device.kind] = [
                sum(round(1e9 * seconds(op, device)) for op in ops) for ops in layers
            ]
    return [by_kind[device.kind] for device in cluster.devices]


def balanced_runs(loads: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Returns for each device its run of layers: the index of the first, and the index after the last.

    loads: [device][layer], nanoseconds.
    """
    # Devices of one kind have the same row, which is summed once.
    sums = {id(row): [0, *accumulate(row)] for row in loads}
    by_device = [sums[id(row)] for row in loads]  # for each device, the cumulative loads
    low, high = 0, max(row[-1] for row in by_device)
    while low < high:
        limit = (low + high) // 2
        # [-1][1]: the index after the last layer of the last device. A row has an entry more than layers.
        if _greedy(by_device, limit)[-1][1] == len(by_device[0]) - 1:
            high = limit
        else:
            low = limit + 1
    return _greedy(by_device, high)


def _greedy(by_device: Sequence[Sequence[int]], limit: int) -> list[tuple[int, int]]:
    """Returns the runs if each device takes as many layers as fit the limit; they may not cover all layers.

    by_device: for each device, the cumulative loads of its layers, starting with 0.
    """
    result, first = [], 0
    for sums in by_device:
        last = bisect_right(sums, sums[first] + limit) - 1
        result.append((first, last))
        first = last
    return result
