"""Computes the times of a group's members, forward and backward, in all configurations at once.

The members are the operators of a group, which are split together. A layout has the tiles of one member on
each device in all configurations (layouts.py). The result is the same as ComputeCosts.seconds gives for
each tile, but computed with arrays. On large clusters only a sample of the devices is considered
(transfers.sampled_devices). Roofline: the time follows from FLOPs and bytes; a profile has measured times.
"""

# x: configuration of a group, d: sampled device, u: number of a shape of tiles

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raddle.clusters import Cluster, Device
from raddle.costs.compute import ComputeCosts, Speed, family, roofline, speed
from raddle.graph.box import Box
from raddle.graph.gradients import has_backward
from raddle.graph.graph import Op
from raddle.graph.ops import OPERATOR_KINDS
from raddle.searches.optcnn.layouts import MemberLayout
from raddle.searches.optcnn.ranges import Ranges, volume

Array = np.ndarray


class TileTimes:
    """Computes the times of tiles; operators with the same cost key and layout share the result.

    active: names of the values that need a gradient. devices: indices of the sampled devices.
    """

    def __init__(
        self, compute: ComputeCosts, active: frozenset[str], cluster: Cluster, devices: Array
    ) -> None:
        self.compute, self.active = compute, active
        self.keys: dict[str, tuple[Any, ...]] = {}  # cost key, by operator
        self.devices: list[Device] = [cluster.devices[d] for d in devices]
        self.volumes: dict[Any, Any] = {}  # cache of ranges.volume
        # By family (conv, matmul, attention, memory) and dtype.
        self.speeds: dict[tuple[str, Any], Speed] = {}

    def cost_key(self, op: Op) -> tuple[Any, ...]:
        """Returns everything that the time of an operator depends on, besides its layout.

        It is a tuple (operator kind, dtypes, numbers of the operands that get a gradient, and what measured
        blocks say about it in both phases). The third entry is None if the operator has no backward.
        """
        key = self.keys.get(op.name)
        if key is None:
            with_backward = has_backward(op, self.active)
            grad_operands = self.compute.grad_operands[op.name, "B"] if with_backward else None
            blocks = [self.compute.block_time(op, phase) for phase in "FB"]
            key = (op.kind, self.compute.dtypes[op.name], grad_operands, *blocks)
            self.keys[op.name] = key
        return key

    def seconds(self, op: Op, layout: MemberLayout) -> Array:
        """Returns [x, d]: seconds of an operator's tiles, forward and backward; 0 without a tile."""
        key = self.cost_key(op)
        if key not in layout.seconds_cache:
            grad_operands = key[2]  # operands that get a gradient; None: no backward
            if OPERATOR_KINDS[op.kind].flops is not None:  # the kind counts its FLOPs itself
                tile_seconds = self._seconds_by_shape(
                    op, layout, "F" if grad_operands is None else "FB"
                )
            else:
                forward, backward = self._roofline_seconds(op, layout, grad_operands or ())
                if self.compute.profile is not None:
                    forward, backward = self._measured(op, layout, forward, backward, grad_operands)
                tile_seconds = forward + backward
            layout.seconds_cache[key] = np.where(layout.present, tile_seconds, 0.0)
        return layout.seconds_cache[key]  # type: ignore[no-any-return]

    def _roofline_seconds(
        self, op: Op, layout: MemberLayout, grad_operands: Sequence[int]
    ) -> tuple[Array, Array]:
        """Returns [x, d]: roofline seconds of the forward, and those of the backward.

        The gradient of an operand takes as long as the forward, except for operands that are added once, as
        a bias is. grad_operands: numbers of the operands that get a gradient.
        """
        space, graph, speeds = op.space, self.compute.graph, self._speed(op)
        read = [volume(need.ranges, self.volumes) * _mask(need.present, layout.present)
                for need in layout.needs]  # fmt: skip
        # read, written: elements of each operand and output
        written = [volume(output, self.volumes) for output in layout.outputs]
        added_once = [i for i in grad_operands if space.operands[i].added_once]
        flops = (2 if space.is_product else space.flops_per_point) * volume(
            layout.dims, self.volumes
        )
        forward = roofline(graph, op, flops, [*read, *written], speeds, np.maximum)
        backward = 0.0
        for i in grad_operands:
            # The gradient of a bias only reads the gradient of the output.
            elements = [e if i == k else 0 for k, e in enumerate(read)] if i in added_once else read
            backward = backward + roofline(
                graph, op, 0 if i in added_once else flops, [*elements, *written], speeds,
                np.maximum, operand=i,
            )  # fmt: skip
        return np.asarray(forward), np.asarray(backward)

    def _speed(self, op: Op) -> Speed:
        """Returns the speeds of the sampled devices for this kind of operator, as arrays [d]."""
        key = (family(op), op.dtypes[0])
        if key not in self.speeds:
            self.speeds[key] = Speed(
                *np.array([speed(self.compute.graph, op, d) for d in self.devices]).T
            )
        return self.speeds[key]

    # -- tile by tile, once for each shape -------------------------------------------------------

    def _seconds_by_shape(self, op: Op, layout: MemberLayout, phases: str) -> Array:
        """Returns [x, d]: seconds of operators whose kind has a FLOP count of its own.

        ComputeCosts.seconds is called once for each different shape of tile. phases: "F" (forward only) or
        "FB" (forward and backward).
        """
        sizes = [*layout.dims, *(r for need in layout.needs for r in need.ranges)]
        needed = [need.present for need in layout.needs if need.present is not layout.present]
        tiles, shape_number = self._distinct_tiles(layout, sizes, needed)
        seconds = np.zeros(len(tiles))
        for u, (x, d) in enumerate(tiles):
            spans = [r.span(x, d) for r in layout.dims]
            box = Box(tuple(lo for lo, _ in spans), tuple(hi for _, hi in spans))
            seconds[u] = sum(
                self.compute.seconds(op, box, phase, self.devices[d]) for phase in phases
            )
        return np.asarray(seconds[shape_number])

    def _measured(
        self, op: Op, layout: MemberLayout, forward: Array, backward: Array,
        grad_operands: Sequence[int] | None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Returns forward and backward seconds: measured times where there are any, else the roofline."""
        tiles, shape_number = self._distinct_tiles(layout, layout.dims, [])
        array_shape = layout.present.shape
        both = [
            np.broadcast_to(roofline_seconds, array_shape).copy()
            for roofline_seconds in (forward, backward)
        ]
        for u, (x, d) in enumerate(tiles):
            spans = (r.span(x, d) for r in layout.dims)
            box = Box.full([hi - lo for lo, hi in spans])
            for phase, seconds in zip("FB", both, strict=True):
                time = self.compute.measured_seconds(op, box, phase, self.devices[d])
                if time is not None and (phase == "F" or grad_operands is not None):
                    seconds[shape_number == u] = time
        return both[0], both[1]

    def _distinct_tiles(
        self, layout: MemberLayout, ranges: Sequence[Ranges], needed: Sequence[Array]
    ) -> tuple[list[tuple[int, int]], Array]:
        """Returns a tile (x, d) of each shape and kind of device, and [x, d]: the numbers of the shapes.

        Tiles have the same shape if their sizes along `ranges` are equal, and their entries in the arrays
        `needed` [x, d]: whether the device reads an operand.
        """
        kinds = sorted({d.kind for d in self.devices})
        shape = layout.present.shape
        kind = np.broadcast_to([kinds.index(d.kind) for d in self.devices], shape)
        # len(kinds): no tile
        shape_number = np.where(layout.present, kind, len(kinds)).reshape(-1)
        for column in [*(r.sizes for r in ranges if r.index is not None), *needed]:
            values = column.reshape(-1).astype(np.int64)
            shape_number = np.unique(
                shape_number * (values.max() + 1) + values, return_inverse=True
            )[1]
        _, first, shape_number = np.unique(shape_number, return_index=True, return_inverse=True)
        tiles = [(int(k) // shape[1], int(k) % shape[1]) for k in first]
        return tiles, shape_number.reshape(shape)


def _mask(reads: Array, has_tile: Array) -> Array | float:
    """Returns 1 for devices that read an operand, else 0; or the number 1 if all with a tile read it."""
    return 1.0 if reads is has_tile else reads.astype(float)
