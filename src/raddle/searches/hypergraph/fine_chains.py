"""Makes starts for fine partitions into many parts: groups of consecutive layers, each on its own parts.

A *fine* partition may put the input channels of one filter into different parts; a *part* is a device's
share. In each layer the parts form *rows*: the parts of a row compute the same filters (units), each over
its own channels (fine_rows.py). A *map* is a feature map that layers read. It consists of *pieces*: the
units of one layer, then those of the next. A *dense* reader of a map is a layer, which sums over its
channels. An *elementwise* reader is an operator such as an add, whose unit i reads unit i of the map
(network.py). The *volume* is the elements that cross parts in a forward.

As no part has layers of two groups, the volume of a group does not depend on the other groups, so dynamic
programming finds the best groups. Each layer of a group is spread evenly over the group's parts, in as many
rows as are cheapest. With `a` rows of `b` parts each, the map that the layer reads is sent a - 1 times,
once more if it comes from another group, and the partial results are sent b - 1 times.
"""

# l, t: layers; v: map; i, j: first layer of a group and the layer after its last; s: parts of a group; a:
# rows; b: parts of a row; pb: the problem, the network as arrays (fine_walk.py); pb.splittable: by layer,
# whether a filter's channels may be in several parts

from __future__ import annotations

import math

import numpy as np

from raddle.searches.hypergraph.fine_rows import FineRows, apportion
from raddle.searches.hypergraph.fine_walk import FineProblem
from raddle.searches.hypergraph.network import LayerNetwork


def chain_rows(
    network: LayerNetwork, pb: FineProblem, parts: int, capacity: float
) -> FineRows | None:
    """Returns the rows of the best groups, or None if no groups fit into this many parts.

    capacity: most work of any part.
    """
    layers = len(network.layers)
    layer_groups = _LayerGroups(network, pb, parts)
    # For each layer: the work of all layers before it
    work = np.concatenate([[0.0], np.cumsum(pb.m.work * pb.m.units)])
    # best[j, used]: least volume of the layers before j on `used` parts
    best = np.full((layers + 1, parts + 1), np.inf)
    best[0, 0] = 0
    # [j, used]: the first layer of the last group in that solution; the group before it ends there
    previous_end = np.zeros((layers + 1, parts + 1), np.int64)
    for j in range(1, layers + 1):
        for i in range(j - 1, -1, -1):
            # As few parts as the work of layers i to j - 1 needs
            s = max(1, math.ceil((work[j] - work[i]) / capacity - 1e-9))
            if s > parts:
                break
            total = best[i, : parts + 1 - s] + layer_groups.volume(i, j, s)
            is_better = total < best[j, s:]
            best[j, s:][is_better], previous_end[j, s:][is_better] = total[is_better], i
    parts_used = int(best[layers].argmin())
    if not np.isfinite(best[layers, parts_used]):
        return None
    # Traced back from the last group: (first layer, layer after the last, first part, number of parts)
    groups, j = [], layers
    while j:
        i = int(previous_end[j, parts_used])
        s = max(1, math.ceil((work[j] - work[i]) / capacity - 1e-9))
        parts_used -= s
        groups.append((i, j, parts_used, s))
        j = i
    return layer_groups.rows(groups)


class _LayerGroups:
    """Volumes and rows of groups of layers."""

    def __init__(self, network: LayerNetwork, pb: FineProblem, parts: int) -> None:
        self.network, self.pb, self.parts = network, pb, parts
        # For each layer and number of parts: the result of row_sizes
        self.row_sizes_cache: dict[tuple[int, int], tuple[list[int], float]] = {}
        self.maps_read: list[list[int]] = [[] for _ in network.layers]
        for v, feature_map in enumerate(network.maps):
            for t in feature_map.dense_readers:
                self.maps_read[t].append(v)

    def volume(self, i: int, j: int, s: int) -> float:
        """Returns the volume of layers i to j - 1 on s parts: maps received and partial results."""
        total = 0.0
        row_counts: dict[int, int] = {}  # by map: the most rows of a layer that reads it
        for l in range(i, j):
            sizes, partial_sums = self.row_sizes(l, s)
            total += partial_sums
            for v in self.maps_read[l]:
                row_counts[v] = max(row_counts.get(v, 0), len(sizes))
        for v, feature_map in enumerate(self.network.maps):
            # Every row of parts that reads the map needs each of its units once. Units that the group's
            # layers compute themselves (`inside`) are not sent to one of these rows: it is assumed that
            # there each part owns the units that it reads.
            inside = sum(p.units for p in feature_map.pieces if i <= p.layer < j)
            elementwise = any(
                i <= p.layer < j
                for reader_pieces in feature_map.elementwise_readers
                for p in reader_pieces
            )
            if v in row_counts:
                total += feature_map.unit_elements * (row_counts[v] * feature_map.units - inside)
            elif elementwise:
                total += feature_map.unit_elements * (feature_map.units - inside)
        return total

    def row_sizes(self, l: int, s: int) -> tuple[list[int], float]:
        """Returns the cheapest rows of layer l on s parts, as the number of parts in each row, and the
        elements of partial results that they send."""
        if (l, s) not in self.row_sizes_cache:
            units, channels = int(self.pb.m.units[l]), int(self.pb.channels[l])
            maps = [self.network.maps[v] for v in self.maps_read[l]]
            read_elements = sum(v.unit_elements * v.units for v in maps)
            best_volume, self.row_sizes_cache[l, s] = math.inf, ([1] * min(s, units), 0.0)
            for a in range(1, min(s, units) + 1) if self.pb.splittable[l] else ():
                sizes = [s // a + (r < s % a) for r in range(a)]
                # A row of b parts has b / s of the units; the partial results of each are sent b - 1 times.
                partial_sums = float(
                    self.pb.unit_elements[l] * units * (sum(b * b for b in sizes) / s - 1)
                )
                if sizes[0] <= channels and a * read_elements + partial_sums < best_volume:
                    best_volume, self.row_sizes_cache[l, s] = (
                        a * read_elements + partial_sums,
                        (sizes, partial_sums),
                    )
        return self.row_sizes_cache[l, s]

    def rows(self, groups: list[tuple[int, int, int, int]]) -> FineRows:
        """Returns the rows of all layers; groups: (first layer, layer after last, first part, parts)."""
        shape = len(self.network.layers), self.parts
        rows = FineRows(np.zeros(shape, np.int64), np.full(shape, -1), np.zeros(shape, np.int64))
        for i, j, first, s in groups:
            for l in range(i, j):
                self._spread_layer(rows, l, first, s)
        return rows

    def _spread_layer(self, rows: FineRows, l: int, first: int, s: int) -> None:
        """Writes the rows of layer l into `rows`, on s parts from `first` on.

        row: number of a part's row; owned: filters whose partial results the part sums; width: input
        channels that it reads of each filter of its row.
        """
        sizes, _ = self.row_sizes(l, s)
        # apportion divides a number into shares, none below `minimum`. heights: filters of each row
        heights = apportion(self.pb.m.units[l], np.array(sizes), minimum=1)
        part = first
        for r, (b, height) in enumerate(zip(sizes, heights, strict=True)):
            equal_shares = np.ones(b)
            rows.row[l, part : part + b] = r
            rows.owned[l, part : part + b] = apportion(height, equal_shares, minimum=0)
            rows.width[l, part : part + b] = apportion(self.pb.channels[l], equal_shares, minimum=1)
            part += b
