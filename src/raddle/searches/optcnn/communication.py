"""Communication times of OptCNN's costs: transfers of values (t_X in its paper), merging of partial sums.

All results are arrays over configurations: [x], or [i, j] for two groups (see transfers.py). A layout has
the tiles of an operator in all configurations (layouts.py); its `needs` are, for each operand, the part
that each device reads. Partners are the devices with partial sums of the same result (partners.py). On
large clusters only a sample of the devices is considered (transfers.sampled_devices).
"""

# x: configuration of a group, d: sampled device

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
    boxes,
    held_boxes,
    merged_slices,
    receive_links,
    receive_seconds,
    transfer_diagonal,
    transfer_matrix,
)


class CommunicationTimes:
    """Computes seconds of communication in all configurations; equal transfers share one array.

    active: names of the values that need a gradient. devices: indices of the sampled devices.
    layouts: the layout of each operator, by name. volumes: cache of ranges.volume, which counts the
    elements of boxes.
    """

    def __init__(
        self, graph: Graph, active: frozenset[str], cluster: Cluster, devices: Array,
        layouts: Mapping[str, MemberLayout], volumes: dict[Any, Any],
    ) -> None:  # fmt: skip
        self.graph, self.active = graph, active
        self.layouts = layouts
        self.links = receive_links(cluster, devices)
        # [d]: number of the device's node. links.start: position of the first device of each node.
        self.node = np.repeat(np.arange(len(self.links.start) - 1), np.diff(self.links.start))
        self.volumes = volumes
        self.cache: dict[tuple[object, ...], Array] = {}
        self.held_cache: dict[tuple[object, ...], HeldBoxes] = {}

    def merge_seconds(self, op: Op, layout: MemberLayout, readers: Array) -> Array:
        """Returns [x]: seconds to merge partial sums, and to send their gradients back (program/merges.py).

        A large result is divided among the devices with partial sums of it: each merges a slice. Of a small
        result every reading device receives all partial sums. readers: [x, d], whether a device reads it.
        """
        partners = find_partners(layout, self.node)
        nbytes: Array | float = 0.0  # of the partial sum of a device: [x, d]
        for name, output in zip(op.outputs, layout.outputs, strict=True):
            itemsize = self.graph.values[name].dtype.itemsize
            nbytes = nbytes + volume(output, self.volumes) * itemsize
        small = nbytes <= SMALL_RESULT  # 64 KiB
        # The number of messages that a device receives from its node, and from other nodes: all other
        # partial sums of a small result; of a large one, the same slice from each partner.
        in_node = np.where(
            small, partners.partials_in_node - partners.is_first_copy, partners.in_node - 1
        )
        elsewhere = np.where(
            small,
            partners.partials - partners.partials_in_node,
            partners.partner_count - partners.in_node,
        )
        receives = np.where(small, readers, layout.present) & (partners.partner_count > 1)
        tensors = 2 if op.space.combine == "lse" else 1  # a partial log-sum-exp is two tensors
        message_bytes = tensors * nbytes / np.where(small, 1, partners.partner_count)
        inside, outside = (np.where(receives, n * message_bytes, 0.0) for n in (in_node, elsewhere))
        # How often such messages are sent: for the merge, for the gradients on their way back, and to
        # gather the merged slices.
        repeats = 2 if has_backward(op, self.active) else 1
        repeats += not _stays_divided(op) and not np.all(small)
        return repeats * receive_seconds(self.links, inside, outside)

    def transfer_seconds(
        self, op: Op, operand: int, producer: Op, output: int, *, two_groups: bool
    ) -> Array:
        """Returns seconds to bring an operand from its producer, the operator that makes it, to its reader.

        two_groups: True: the result is an array [i, j], for every pair of configurations of the two groups.
        False: both operators are in one group, and the result is an array [x].
        """
        need, name = self.layouts[op.name].needs[operand], producer.outputs[output]
        itemsize = self.graph.values[name].dtype.itemsize
        # The gradient goes back the same way.
        passes = 2 if contributes_gradient(op, name, self.active) else 1
        need_key = (tuple(map(id, need.ranges)), id(need.present))
        source = self._held(producer, output)
        key = ("move", id(source), need_key, itemsize, passes, two_groups)
        if key not in self.cache:
            seconds_of = transfer_matrix if two_groups else transfer_diagonal
            needed = boxes(need.ranges, need.present)
            self.cache[key] = passes * seconds_of(self.links, source, needed, itemsize)
        return self.cache[key]

    def _held(self, op: Op, output: int) -> HeldBoxes:
        """Returns the boxes of an output that devices hold, after partial sums are merged."""
        layout = self.layouts[op.name]
        ranges, present = layout.outputs[output], layout.present
        merged = bool(layout.summed) and _stays_divided(op)
        key = (tuple(map(id, ranges)), id(present), id(layout) if merged else None)
        if key not in self.held_cache:
            device_boxes = boxes(ranges, present)
            if merged:
                partners = find_partners(layout, self.node)
                device_boxes = merged_slices(device_boxes, partners.rank, partners.partner_count)
            self.held_cache[key] = held_boxes(self.links, device_boxes)
        return self.held_cache[key]


def _stays_divided(op: Op) -> bool:
    """Returns whether a merged result stays in slices on the devices that merged it (configurations.py).

    That is so for products (matrix multiplications, convolutions) whose result has dimensions.
    """
    return op.space.is_product and bool(op.space.outputs[0])
