"""JIT-compiled loops of transfers.py: they count the needed elements that a device and its node hold.

A device that computes a tile needs boxes of values; the producer's devices hold boxes of them. The overlap
of two boxes is the product of the overlaps of their ranges. Along one dimension, a device or node holds
only few different ranges over all configurations of the producer. For each such range its overlaps with the
needed ranges of all configurations of the reader are computed once: an array over j, called a row. A box of
a device or node has one row in each dimension. Overlaps of boxes are then products of rows, and the
innermost loops run over j.

On large clusters the arrays have only a sample of the devices (transfers.sampled_devices): all devices of
some of the nodes.
"""

# i: configuration of the producer's group, j: of the reader's group, x: of either, d: sampled device,
# a: node with sampled devices, r: dimension of the value, k: a box of a node, u: number of a row

from __future__ import annotations

import numpy as np
from numba import njit

Array = np.ndarray


@njit(cache=True)
def node_pieces(lo: Array, hi: Array, start: Array) -> tuple[Array, Array, Array]:
    """Returns the different boxes of each node: starts and ends [r, a, k, x], and their number [a, x].

    lo, hi: boxes of devices [r, d, x]. start: [a], first device of a node; at the end, the number of
    devices. If the boxes of a node together make one box, as in row-major grids of powers of two, they
    count as one.
    """
    dims, _, configurations = lo.shape
    nodes, max_devices = len(start) - 1, np.diff(start).max()
    low, high = np.zeros((2, dims, nodes, max_devices, configurations))
    count = np.zeros((nodes, configurations), np.int64)
    total = np.empty(configurations)
    for a in range(nodes):
        total[:] = 0.0
        for d in range(start[a], start[a + 1]):
            for x in range(configurations):
                size = 1.0
                for r in range(dims):
                    size *= hi[r, d, x] - lo[r, d, x]
                if size <= 0 or _is_listed(lo, hi, d, low, high, a, count[a, x], x):
                    continue
                for r in range(dims):
                    low[r, a, count[a, x], x], high[r, a, count[a, x], x] = lo[r, d, x], hi[r, d, x]
                count[a, x] += 1
                total[x] += size
        for x in range(configurations):
            if count[a, x] > 1 and _bounding_volume(low, high, a, count[a, x], x) == total[x]:
                for r in range(dims):
                    low[r, a, 0, x] = low[r, a, : count[a, x], x].min()
                    high[r, a, 0, x] = high[r, a, : count[a, x], x].max()
                count[a, x] = 1
    return low, high, count


@njit(cache=True)
def _is_listed(
    lo: Array, hi: Array, d: int, low: Array, high: Array, a: int, count: int, x: int
) -> bool:
    """Returns whether the box of device d is one of the first `count` boxes of node a."""
    for k in range(count):
        same = True
        for r in range(len(lo)):
            same &= low[r, a, k, x] == lo[r, d, x] and high[r, a, k, x] == hi[r, d, x]
        if same:
            return True
    return False


@njit(cache=True)
def _bounding_volume(low: Array, high: Array, a: int, count: int, x: int) -> float:
    """Returns the volume of the smallest box around the first `count` boxes of node a."""
    volume = 1.0
    for r in range(len(low)):
        volume *= high[r, a, :count, x].max() - low[r, a, :count, x].min()
    return volume


@njit(cache=True)
def fill_seconds(
    need_lo: Array, need_hi: Array, held_lo: Array, held_hi: Array,
    node_lo: Array, node_hi: Array, box_counts: Array,
    start: Array, single_node: bool, link: Array, network: Array, element_bytes: float, diagonal_only: bool,
    out: Array,
) -> None:  # fmt: skip
    """Writes into out[i, j] the seconds of the slowest link. diagonal_only: only for i == j.

    need_*, held_*: boxes of devices [r, d, configuration]; node_*: boxes of nodes [r, a, k, i], with
    box_counts [a, i] of them. start: [a], first device of a node. link, network: [a, (seconds per byte,
    latency, shared)]; shared: 1 if the devices of the node share it, else 0. single_node: the cluster has
    only one node, so that every needed element is inside of it.
    """
    # readers, producers: the number of configurations of their groups
    dims, _, readers = need_lo.shape
    producers, max_boxes = held_lo.shape[2], node_lo.shape[2]
    # rows[r, u]: a row; row_ends[r, u]: its range; held_row, node_row: numbers of the rows of boxes.
    rows = np.empty((dims, producers * (1 + max_boxes), readers))
    row_ends = np.empty((dims, producers * (1 + max_boxes), 2))
    held_row = np.zeros((producers, dims), np.int64)
    node_row = np.zeros((producers, max_boxes, dims), np.int64)
    # Elements that come from inside and from outside of the node, not yet counted into `out`.
    inside, outside = np.zeros((2, producers, readers))
    sizes, buffer = np.empty(readers), np.empty((3, readers))
    for a in range(len(start) - 1):
        widest = 0  # the largest n (see below) of the node's devices
        for d in range(start[a], start[a + 1]):
            # After the node's last device, all bytes of a shared link are counted.
            last = d == start[a + 1] - 1
            _volumes(need_lo[:, d], need_hi[:, d], sizes)
            n = readers  # up to the last configuration in which the device needs anything
            while n > 0 and sizes[n - 1] <= 0:
                n -= 1
            widest = max(widest, n)
            for r in range(dims):
                row_count = 0
                lo, hi = need_lo[r, d, :n], need_hi[r, d, :n]
                for i in range(producers):
                    held_row[i, r], row_count = _row(
                        held_lo[r, d, i], held_hi[r, d, i], lo, hi, rows[r], row_ends[r], row_count
                    )
                    for k in range(0 if single_node else box_counts[a, i]):
                        node_row[i, k, r], row_count = _row(
                            node_lo[r, a, k, i],
                            node_hi[r, a, k, i],
                            lo,
                            hi,
                            rows[r],
                            row_ends[r],
                            row_count,
                        )
            for i in range(producers):
                first, end = (i, min(i + 1, n)) if diagonal_only else (0, n)
                # needed elements that the device itself holds, that its node holds, in one box of the node
                local, in_node, part = buffer[:, first:end]
                local[:] = 0.0
                in_node[:] = sizes[first:end] if single_node else local
                if held_lo[0, d, i] < held_hi[0, d, i]:
                    _multiply(rows, held_row[i], first, local)
                if not single_node and box_counts[a, i] == 1:
                    _multiply(rows, node_row[i, 0], first, in_node)
                elif not single_node:
                    for k in range(box_counts[a, i]):
                        _multiply(rows, node_row[i, k], first, part)
                        in_node += part
                from_node, from_others = inside[i, first:end], outside[i, first:end]
                for j in range(len(local)):
                    from_node[j] += in_node[j] - local[j]
                    from_others[j] += sizes[first + j] - in_node[j]
                if last or link[a, 2] == 0:
                    _close_link(inside[i, :widest], link[a, 0] * element_bytes, link[a, 1], out[i])
                if not single_node and (last or network[a, 2] == 0):
                    _close_link(
                        outside[i, :widest], network[a, 0] * element_bytes, network[a, 1], out[i]
                    )


# Comparisons instead of max and min: with Python's max and min, numba does not vectorise the loops.


@njit(cache=True)
def _volumes(lo: Array, hi: Array, out: Array) -> None:
    """Writes into `out` [j] the volumes of the boxes from lo to hi [r, j]."""
    out[:] = 1.0
    for r in range(len(lo)):
        for j in range(len(out)):
            out[j] *= hi[r, j] - lo[r, j] if hi[r, j] > lo[r, j] else 0.0


@njit(cache=True)
def _row(
    begin: float, end: float, lo: Array, hi: Array, rows: Array, row_ends: Array, row_count: int
) -> tuple[int, int]:
    """Returns the number of the row of the range from `begin` to `end`, and the row count after that.

    If no earlier row has this range, a row is added. lo, hi: [j], needed ranges of a device. rows,
    row_ends: the rows so far, and their ranges.
    """
    for u in range(row_count):
        if row_ends[u, 0] == begin and row_ends[u, 1] == end:
            return u, row_count
    row_ends[row_count, 0], row_ends[row_count, 1] = begin, end
    row = rows[row_count]
    for j in range(len(lo)):
        low = lo[j] if lo[j] > begin else begin
        high = hi[j] if hi[j] < end else end
        row[j] = high - low if high > low else 0.0
    return row_count, row_count + 1


@njit(cache=True)
def _multiply(rows: Array, at: Array, begin: int, out: Array) -> None:
    """Writes into `out` the product of one row for each dimension, from configuration `begin` on."""
    end = begin + len(out)
    first = rows[0, at[0], begin:end]
    if len(at) == 1:
        out[:] = first
        return
    second = rows[1, at[1], begin:end]
    for j in range(len(out)):
        out[j] = first[j] * second[j]
    for r in range(2, len(at)):
        row = rows[r, at[r], begin:end]
        for j in range(len(out)):
            out[j] *= row[j]


@njit(cache=True)
def _close_link(amount: Array, rate: float, latency: float, longest: Array) -> None:
    """Updates `longest` [j] with the time of a link that received `amount` [j], and resets the amount.

    amount: elements. rate: seconds per element. longest: seconds of the slowest link so far.
    """
    for j in range(len(amount)):
        seconds = np.float32(amount[j] * rate + (latency if amount[j] > 0 else 0.0))
        longest[j] = seconds if seconds > longest[j] else longest[j]
        amount[j] = 0.0
