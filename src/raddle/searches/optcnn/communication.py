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
from raddle.searches.optcnn.layouts import MemberLayout
from raddle.searches.optcnn.partners import find_partners
from raddle.searches.optcnn.ranges import Array, volume
from raddle.searches.optcnn.transfers import (
    HeldBoxes,
    Received,
    boxes,
    held_boxes,
    merged_slices,
    receive_links,
    receive_seconds,
    transfer_diagonal,
    transfer_matrix,
)


class CommunicationTimes:
    """Seconds of transfers under all configurations; the same for transfers that are alike."""

    def __init__(
        self, graph: Graph, active: frozenset[str], cluster: Cluster, devices: Array,
        layouts: Mapping[str, MemberLayout], volumes: dict[Any, Any],
    ) -> None:  # fmt: skip
        self.graph, self.active = graph, active
        self.layouts = layouts  # by operator
        self.links = receive_links(cluster, devices)
        self.node = np.repeat(np.arange(len(self.links.start) - 1), np.diff(self.links.start))
        self.volumes = volumes  # by ranges, as far as they were counted
        self.cache: dict[tuple[object, ...], Array] = {}
        self.held_cache: dict[tuple[object, ...], HeldBoxes] = {}

    def merge_seconds(self, op: Op, layout: MemberLayout, readers: Array) -> Array:
        """What it takes to merge partial sums, and for their gradients to come back (merging.py).

        Large results are divided among those that have parts of them. Of small ones, every device that
        reads any gets all parts, so that messages are many.
        """
        partners_of = find_partners(layout, self.node)
        nbytes: Array | float = 0.0  # of a part
        for name, output in zip(op.outputs, layout.outputs, strict=True):
            width = self.graph.values[name].dtype.itemsize
            nbytes = nbytes + volume(output, self.volumes) * width
        small = nbytes <= SMALL_RESULT
        in_node = np.where(
            small, partners_of.partials_in_node - partners_of.is_first_copy, partners_of.in_node - 1
        )
        elsewhere = np.where(
            small,
            partners_of.partials - partners_of.partials_in_node,
            partners_of.partner_count - partners_of.in_node,
        )
        receives = np.where(small, readers, layout.present) & (partners_of.partner_count > 1)
        tensors = 2 if op.space.combine == "lse" else 1  # a log-sum-exp travels as a pair
        message_bytes = tensors * nbytes / np.where(small, 1, partners_of.partner_count)
        inside, outside = (
            Received(np.where(receives, n, 0.0), np.where(receives, n * message_bytes, 0.0))
            for n in (in_node, elsewhere)
        )
        repeats = 2 if has_backward(op, self.active) else 1
        repeats += not _stays_divided(op) and not np.all(small)  # the result is gathered, too
        return repeats * receive_seconds(self.links, inside, outside)

    def transfer_seconds(
        self, op: Op, operand: int, producer: Op, output: int, *, two_groups: bool
    ) -> Array:
        """Seconds to bring what an operator reads: by two configurations, or of one group, by one."""
        need, name = self.layouts[op.name].needs[operand], producer.outputs[output]
        width = self.graph.values[name].dtype.itemsize
        twice = 2 if contributes_gradient(op, name, self.active) else 1
        need_key = (tuple(map(id, need.ranges)), id(need.present))
        source = self._held(producer, output)
        key = ("move", id(source), need_key, width, twice, two_groups)
        if key not in self.cache:
            seconds_of = transfer_matrix if two_groups else transfer_diagonal
            needed = boxes(need.ranges, need.present)
            self.cache[key] = twice * seconds_of(self.links, source, needed, width)
        return self.cache[key]

    def _held(self, op: Op, output: int) -> HeldBoxes:
        """Where an output is, after partial sums are merged."""
        layout = self.layouts[op.name]
        ranges, present = layout.outputs[output], layout.present
        merged = bool(layout.summed) and _stays_divided(op)
        key = (tuple(map(id, ranges)), id(present), id(layout) if merged else None)
        if key not in self.held_cache:
            device_boxes = boxes(ranges, present)
            if merged:
                partners_of = find_partners(layout, self.node)
                device_boxes = merged_slices(
                    device_boxes, partners_of.rank, partners_of.partner_count
                )
            self.held_cache[key] = held_boxes(self.links, device_boxes)
        return self.held_cache[key]


def _stays_divided(op: Op) -> bool:
    """Whether what is merged is divided among those that merge it: see configurations.py."""
    return op.space.is_product and bool(op.space.outputs[0])
