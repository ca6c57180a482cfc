"""t_X, and the merging of partial sums: what it takes to bring values to the devices that read them."""

# x: configuration, d: device

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raddle.clusters import Cluster
from raddle.graph.gradients import contributes_gradient, has_backward
from raddle.graph.graph import Graph, Op
from raddle.program.replicated_loss import SMALL_RESULT
from raddle.searches.optcnn.layouts import Layout
from raddle.searches.optcnn.partners import partners
from raddle.searches.optcnn.ranges import Array, volume
from raddle.searches.optcnn.transfers import (
    Held,
    Received,
    boxes,
    diagonal,
    held,
    matrix,
    received,
    sliced,
    wires,
)


class Moves:
    """Seconds of transfers under all configurations; the same for transfers that are alike."""

    def __init__(
        self, graph: Graph, active: frozenset[str], cluster: Cluster, devices: Array,
        layouts: Mapping[str, Layout], volumes: dict[Any, Any],
    ) -> None:  # fmt: skip
        self.graph, self.active = graph, active
        self.layouts = layouts  # by operator
        self.wires = wires(cluster, devices)
        self.node = np.repeat(np.arange(len(self.wires.start) - 1), np.diff(self.wires.start))
        self.volumes = volumes  # by ranges, as far as they were counted
        self.known: dict[tuple[object, ...], Array] = {}
        self.owned: dict[tuple[object, ...], Held] = {}

    def merged(self, op: Op, layout: Layout, readers: Array) -> Array:
        """What it takes to merge partial sums, and for their gradients to come back (merging.py).

        Large results are divided among those that have parts of them. Of small ones, every device that
        reads any gets all parts, so that messages are many.
        """
        found = partners(layout, self.node)
        nbytes: Array | float = 0.0  # of a part
        for name, output in zip(op.outputs, layout.outputs, strict=True):
            width = self.graph.values[name].dtype.itemsize
            nbytes = nbytes + volume(output, self.volumes) * width
        small = nbytes <= SMALL_RESULT
        near = np.where(small, found.parts_near - found.counts, found.near - 1)
        far = np.where(small, found.parts - found.parts_near, found.number - found.near)
        here = np.where(small, readers, layout.present) & (found.number > 1)
        tensors = 2 if op.space.combine == "lse" else 1  # a log-sum-exp travels as a pair
        each = tensors * nbytes / np.where(small, 1, found.number)
        inside, outside = (
            Received(np.where(here, n, 0.0), np.where(here, n * each, 0.0)) for n in (near, far)
        )
        times = 2 if has_backward(op, self.active) else 1
        times += not _stays_divided(op) and not np.all(small)  # the result is gathered, too
        return times * received(self.wires, inside, outside)

    def moved(self, op: Op, operand: int, maker: Op, output: int, *, between: bool) -> Array:
        """Seconds to bring what an operator reads: by two configurations, or of one group, by one."""
        need, name = self.layouts[op.name].needs[operand], maker.outputs[output]
        width = self.graph.values[name].dtype.itemsize
        twice = 2 if contributes_gradient(op, name, self.active) else 1
        wanted = (tuple(map(id, need.ranges)), id(need.present))
        own = self._held(maker, output)
        key = ("move", id(own), wanted, width, twice, between)
        if key not in self.known:
            bring = matrix if between else diagonal
            to = boxes(need.ranges, need.present)
            self.known[key] = twice * bring(self.wires, own, to, width)
        return self.known[key]

    def _held(self, op: Op, output: int) -> Held:
        """Where an output is, after partial sums are merged."""
        layout = self.layouts[op.name]
        ranges, present = layout.outputs[output], layout.present
        merged = bool(layout.summed) and _stays_divided(op)
        key = (tuple(map(id, ranges)), id(present), id(layout) if merged else None)
        if key not in self.owned:
            own = boxes(ranges, present)
            if merged:
                found = partners(layout, self.node)
                own = sliced(own, found.rank, found.number)
            self.owned[key] = held(self.wires, own)
        return self.owned[key]


def _stays_divided(op: Op) -> bool:
    """Whether what is merged is divided among those that merge it: see configurations.py."""
    return op.space.is_product and bool(op.space.outputs[0])
