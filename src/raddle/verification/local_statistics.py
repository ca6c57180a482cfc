"""Computes batch norm with local statistics (`bn: local`) for the plain module, the reference of a plan.

With `bn: local`, a device computes mean and variance only over its own tile of the input, as
DistributedDataParallel does. To get the same numbers, the serial reference normalises the input tile by
tile. Each device also has its own running statistics.

In the graph, a batch norm is two operators: `moments` computes mean and variance, and `batch_norm`
normalises.
"""

# c: channel, dimension 1 of the input

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op
from raddle.plans.plan import Plan


class _Tile(NamedTuple):
    """A part of the input that a device normalises. Both boxes are parts of the input."""

    device: int
    normalised: Box  # the elements that are normalised
    counted: Box  # the elements over which mean and variance are computed


def has_serial_reference(graph: Graph, plan: Plan) -> bool:
    """Return whether serial training can repeat the batch norms of the plan.

    It cannot if several devices normalise the same elements with different statistics.
    """
    for moments, norm in _norms(graph):
        by_box: dict[Box, Box] = {}
        for tile in _tiles(plan, moments, norm):
            if by_box.setdefault(tile.normalised, tile.counted) != tile.counted:
                return False
    return True


class LocalStatistics:
    """Replaces F.batch_norm; its n-th call in a forward is the n-th batch norm of the graph."""

    def __init__(
        self, graph: Graph, plan: Plan, model: nn.Module, running: dict[int, dict[str, Tensor]]
    ) -> None:
        # For each batch norm: its tiles, and the list of (device, part of the input) whose mean and
        # variance the device computes. m: the operator `moments`.
        self.norms = [(_tiles(plan, m, norm), _regions(plan, m)) for m, norm in _norms(graph)]
        self.names = {id(t): name for name, t in model.named_buffers()}  # by id of a buffer
        self.running = running  # running statistics, by device and buffer name
        self.count = 0  # number of batch norms that this forward has called so far

    def begin(self) -> None:
        """Start a new forward."""
        self.count = 0

    def __call__(
        self, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
        weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
        momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        """Normalise each tile with its own statistics, and update the running statistics of each device."""
        if not training:
            buffers = (running_mean, running_var)
            # The first False: not training; the last one: without cuDNN.
            return torch.batch_norm(input, weight, bias, *buffers, False, momentum, eps, False)
        if self.count == len(self.norms):
            raise InputError(
                "the module runs a batch norm that is not in the graph of the plan: plan it again."
            )
        # counted: (device, part of the input) for each tile of the statistics
        tiles, counted = self.norms[self.count]
        self.count += 1
        y = torch.empty_like(input)
        for tile in tiles:
            c = _channels(tile.normalised)
            mean, var = _moments(input, tile.counted)
            region = tile.normalised.slices_within(Box.full(input.shape))
            x = (input[region] - _broadcast(mean, input)) * _broadcast((var + eps).rsqrt(), input)
            x = x if weight is None else x * _broadcast(weight[c], input)
            y[region] = x if bias is None else x + _broadcast(bias[c], input)
        if running_mean is not None and running_var is not None:
            for device, box in counted:
                mean, var = _moments(input.detach(), box)
                size = box.volume // (box.hi[1] - box.lo[1])  # elements of a channel
                unbiased = var * size / max(1, size - 1)
                for buffer, value in ((running_mean, mean), (running_var, unbiased)):
                    self._update_running(device, buffer, _channels(box), momentum, value)
        return y

    def _update_running(
        self, device: int, buffer: Tensor, c: slice, momentum: float, value: Tensor
    ) -> None:
        """Update channels c of a device's own copy of a running statistic."""
        buffers = self.running.setdefault(device, {})
        running = buffers.setdefault(self.names[id(buffer)], buffer.detach().clone())
        running[c] += momentum * (value - running[c])


def _moments(x: Tensor, box: Box) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each channel over a part of x."""
    dims = [d for d in range(x.ndim) if d != 1]
    var, mean = torch.var_mean(x[box.slices_within(Box.full(x.shape))], dims, correction=0)
    return mean, var


def _broadcast(by_channel: Tensor, x: Tensor) -> Tensor:
    """Reshape a value per channel so that it broadcasts over x."""
    return by_channel.view(1, -1, *[1] * (x.ndim - 2))


def _norms(graph: Graph) -> Iterator[tuple[Op, Op]]:
    """Yield (moments, batch_norm) operators in the order in which they run."""
    for moments in graph.ops:
        if moments.kind == "moments" and moments.composite_kind == "batch_norm":
            readers = graph.readers.get(moments.outputs[0], ())
            yield moments, next(op for op in readers if op.kind == "batch_norm")


def _regions(plan: Plan, op: Op) -> list[tuple[int, Box]]:
    """For each tile of an operator, return its device and the part of the input that it reads."""
    # op.space.regions gives for each operand the box that a tile reads, or None; operand 0 is the input.
    regions = ((t.device, op.space.regions(t.box)[0]) for t in plan.tiles[op.name].tiles)
    return [(device, box) for device, box in regions if box is not None]


def _tiles(plan: Plan, moments: Op, norm: Op) -> list[_Tile]:
    """Return the parts that each device normalises, cut by channels like the tiles of its statistics."""
    tiles = []
    for device, box in _regions(plan, norm):
        for moments_device, counted in _regions(plan, moments):
            lo, hi = max(box.lo[1], counted.lo[1]), min(box.hi[1], counted.hi[1])
            if moments_device == device and lo < hi:
                tiles.append(
                    _Tile(
                        device, _restrict_channels(box, lo, hi), _restrict_channels(counted, lo, hi)
                    )
                )
    return tiles


def _restrict_channels(box: Box, lo: int, hi: int) -> Box:
    """Return the part of a box with the channels from lo to hi."""
    return Box((box.lo[0], lo, *box.lo[2:]), (box.hi[0], hi, *box.hi[2:]))


def _channels(box: Box) -> slice:
    """Return the channels of a box."""
    return slice(box.lo[1], box.hi[1])
