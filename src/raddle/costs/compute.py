"""Gives the seconds that a device needs for a tile (a box) of an operator, from a profile or by a roofline.

The roofline: max(FLOP / FLOP rate, bytes / memory bandwidth) + a fixed overhead per operator. FLOP and
bytes follow from the operator's index notation for exactly that box. The efficiency, the fraction of the
device's peak that is reached, depends on the operator's family: conv, matmul, attention or memory.

A profile may have *measured blocks*: segments as they run, whose time a roofline scales to other sizes
(measured_blocks.py). They come first.

A *native call* is one PyTorch call that computes several operators of the graph, as batch norm or LSTM do;
a profile may have its seconds, and each operator gets a share of them (native_calls.py).

Phases: "F" forward, "R" forward recomputed, "B" backward. With a split backward, "B" computes the
gradients of activations only, and "W" those of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from raddle.clusters import Device
from raddle.costs.measured_blocks import OperatorTime
from raddle.costs.native_calls import NativeCall, find_native_calls
from raddle.costs.profile import Profile, native_call_key, profile_key
from raddle.graph.box import Box
from raddle.graph.dtypes import cast_dtype
from raddle.graph.gradients import operands_with_gradient
from raddle.graph.graph import Graph, Op
from raddle.graph.ops import work


def family(op: Op) -> str:
    """Returns the family of an operator: conv, matmul, attention, or memory if bandwidth limits it."""
    if op.traits.family == "attention":
        return "attention"
    # a product (contraction) multiplies and sums, as matmul and conv do
    if not op.space.is_product:
        return "memory"
    return op.traits.family or "matmul"


class ComputeCosts:
    """Seconds of operators, cached. The roofline is used where the profile has no measurement.

    active: names of the values that have a gradient (graph/gradients.py).
    """

    def __init__(
        self,
        graph: Graph,
        active: frozenset[str],
        profile: Profile | None = None,
        *,
        split_backward: bool = False,  # "B" and "W" are separate phases
        bn: str = "global",  # batch-norm statistics, as in a plan: "global" or "local" (per device)
        native_calls: Mapping[str, NativeCall] | None = None,  # by operator; None: all of the graph
    ) -> None:
        self.graph, self.profile, self.bn = graph, profile, bn
        candidates = find_native_calls(graph) if native_calls is None and profile else native_calls
        # Without a profile no native call has measured seconds, so none is used. With a split backward,
        # operators with parameters run by themselves (program/segments.py).
        # Operators of measured blocks run as they were measured, in native calls or not.
        self.native_calls = {
            name: call for name, call in (candidates or {}).items()
            if profile and not (split_backward and call.has_parameters)
            and not (profile.blocks and name in profile.blocks.operators)
        }  # fmt: skip
        # (operator, phase "B" or "W") -> numbers of the operands whose gradients the phase computes
        self.grad_operands: dict[tuple[str, str], tuple[int, ...]] = {}
        self.all_grad_operands: dict[str, tuple[int, ...]] = {}  # operator -> those of "B" and "W"
        for op in graph.ops:
            with_gradient = operands_with_gradient(op, active)
            weights = [i for i in with_gradient if graph.values[op.inputs[i]].role == "parameter"]
            self.all_grad_operands[op.name] = with_gradient
            self.grad_operands[op.name, "W"] = tuple(weights) if split_backward else ()
            self.grad_operands[op.name, "B"] = tuple(
                i for i in with_gradient if not split_backward or i not in weights
            )
        self.dtypes = {  # of operands and outputs, and that to which autocast casts operands
            op.name: (
                *(graph.values[i].dtype for i in op.inputs),
                *op.dtypes,
                graph.casts.get(op.name),
            )
            for op in graph.ops
        }
        self.cache: dict[tuple[object, ...], float] = {}
        # By operator and phase ("F" or "B"), what the profile's measured blocks say about it.
        self.block_times: dict[tuple[str, str], OperatorTime | None] = {}

    def seconds(self, op: Op, box: Box, phase: str, device: Device) -> float:
        """Returns the seconds of a box in a phase ("F", "R", "B" or "W") on a device."""
        grad_operands = self.grad_operands.get((op.name, phase))
        if op.name in self.native_calls:
            call_seconds = self._measured_native_call(op, box, phase, device.kind)
            if call_seconds is not None:
                return call_seconds
        key = (*self.cost_key(op, phase), box, device.kind)
        seconds = self.cache.get(key)
        if seconds is None:
            measured = self._block_seconds(op, box, phase, device)
            if measured is None:
                measured = self._measured_op(op, box, grad_operands, device.kind)
            if measured is None and grad_operands:
                measured = self._measured_part(op, box, grad_operands, device)
            seconds = (
                self._roofline_seconds(op, box, grad_operands, device)
                if measured is None
                else measured
            )
            self.cache[key] = seconds
        return seconds

    def cost_key(self, op: Op, phase: str) -> tuple[object, ...]:
        """Returns a key that is equal for operators whose tiles of the same shape take equally long."""
        # Operators with the same notation and sizes share one Space object: its id stands for both.
        content = (
            id(op.space),
            op.kind,
            self.dtypes[op.name],
            self.grad_operands.get((op.name, phase)),
        )
        # A profile distinguishes operators further, for example by attributes and by native calls.
        if self.profile is None:
            return content
        return (*content, self._profile_keys[op.name], self.block_time(op, phase))

    @cached_property
    def _profile_keys(self) -> Mapping[str, str]:
        """The key of each operator in a profile.

        For an operator of a native call, its share of the call's seconds and the call's key follow. The
        keys are those of the whole operator ("F": forward, no gradients, no kind of device).
        """
        keys = {op.name: profile_key(op, op.space.full, "F", None, "") for op in self.graph.ops}
        for name, call in self.native_calls.items():
            call_key = native_call_key(call, call.main.space.full, "F", None, "")
            keys[name] += f" {call.time_shares[name]} {call_key}"
        return keys

    def measured_seconds(self, op: Op, box: Box, phase: str, device: Device) -> float | None:
        """Returns the seconds that the profile has for this tile and phase; None if it has none.

        A measured block has them for a tile of any size, everything else for just this size.
        """
        call_seconds = (
            self._measured_native_call(op, box, phase, device.kind)
            if op.name in self.native_calls
            else self._block_seconds(op, box, phase, device)
        )
        if call_seconds is not None:
            return call_seconds
        return self._measured_op(op, box, self.grad_operands.get((op.name, phase)), device.kind)

    # -- measured blocks -----------------------------------------------------------------------------

    def identity(self, op: Op) -> str:
        """Returns what an operator is, for measured blocks: its label and its dtypes."""
        dtypes = (str(t).removeprefix("torch.") for t in self.dtypes[op.name])
        return f"{op.label} {' '.join(dtypes)}{' tf32' * self.graph.tf32_products}"

    def work_seconds(self, op: Op, box: Box, phase: str, device: Device) -> float:
        """Returns the roofline seconds of a tile without overheads: its amount of work on a device."""
        return self._work_seconds(op, box, self.grad_operands.get((op.name, phase)), device)

    def _work_seconds(
        self, op: Op, box: Box, grad_operands: Sequence[int] | None, device: Device
    ) -> float:
        return self._roofline_seconds(op, box, grad_operands, replace(device, overhead=0.0))

    def block_time(self, op: Op, phase: str) -> OperatorTime | None:
        """Returns what the profile's measured blocks say about an operator in a phase, or None."""
        blocks = self.profile.blocks if self.profile else None
        if blocks is None:
            return None
        measured_phase = "B" if (op.name, phase) in self.grad_operands else "F"
        key = op.name, measured_phase
        if key not in self.block_times:
            self.block_times[key] = blocks.find(op.name, self.identity(op), measured_phase)
        return self.block_times[key]

    def _block_seconds(self, op: Op, box: Box, phase: str, device: Device) -> float | None:
        """Returns an operator's share of the seconds of its measured block, or None."""
        time = self.block_time(op, phase)
        if time is None or not (
            self.profile and self.profile.blocks and self.profile.blocks.check_device(device)
        ):
            return None
        grad_operands = self.grad_operands.get((op.name, phase))
        work = self._work_seconds(op, box, grad_operands, device)
        all_operands = self.all_grad_operands[op.name]
        if grad_operands is None or grad_operands == all_operands:
            return time.seconds(work)
        return time.seconds(work, work / (self._work_seconds(op, box, all_operands, device) or 1.0))

    # -- single operators and native calls -------------------------------------------------------------

    def _measured_op(
        self, op: Op, box: Box, grad_operands: Sequence[int] | None, device_kind: str
    ) -> float | None:
        """Returns the seconds of an operator from the profile, or None."""
        if self.profile is None:
            return None
        return self.profile.find(
            op, box, "F" if grad_operands is None else "B", grad_operands, device_kind
        )

    def _measured_part(
        self, op: Op, box: Box, grad_operands: Sequence[int], device: Device
    ) -> float | None:
        """Returns the seconds of "B" or "W" of a split backward, if only the whole backward was measured.

        The measured time is divided in the ratio of the roofline times.
        """
        # the operands whose gradients "B" and "W" compute together
        all_operands = self.all_grad_operands[op.name]
        measured = (
            self._measured_op(op, box, all_operands, device.kind)
            if tuple(grad_operands) != all_operands
            else None
        )
        if measured is None:
            return None
        return (
            measured
            * self._roofline_seconds(op, box, grad_operands, device)
            / self._roofline_seconds(op, box, all_operands, device)
        )

    def _measured_native_call(self, op: Op, box: Box, phase: str, device_kind: str) -> float | None:
        """Returns an operator's share of the measured seconds of its native call; None if not applicable.

        With a split backward, "B" takes all of the time and "W" none: one call gives all gradients.
        """
        call = self.native_calls[op.name]
        # The device can make the call only if the tile is whole in all dimensions that it may not split.
        if not call.is_whole(op, box, self.bn):
            return None
        backward = (call.main.name, phase) in self.grad_operands
        grad_operands = self.all_grad_operands[call.main.name] if backward else None
        assert self.profile is not None
        tile = call.main_tile(op, box)
        seconds = self.profile.find_native_call(
            call, tile, "B" if backward else "F", grad_operands, device_kind
        )
        return None if seconds is None else seconds * call.time_shares[op.name] * (phase != "W")

    def _roofline_seconds(
        self, op: Op, box: Box, grad_operands: Sequence[int] | None, device: Device
    ) -> float:
        """Returns the seconds by the roofline, of a forward or of a backward.

        grad_operands: the operands whose gradients the backward computes; None for the forward.
        """
        seconds = 0.0
        for i in [None] if grad_operands is None else grad_operands:
            w, device_speed = work(op, box, i), speed(self.graph, op, device)
            seconds += roofline(self.graph, op, w.flops, w.elements, device_speed, operand=i)
        return seconds


class Speed(NamedTuple):
    """The effective speed of a device for an operator. Each field may be an array over several devices."""

    bandwidth: Any  # bytes/s of memory
    flop_rate: Any  # FLOP/s; infinite if only memory bandwidth counts
    overhead: Any  # fixed seconds per operator


def speed(graph: Graph, op: Op, device: Device) -> Speed:
    """Returns the effective speed of a device for an operator."""
    op_family, rate = family(op), math.inf
    if op_family != "memory":
        dtype = str(op.dtypes[0]).removeprefix("torch.")
        # PyTorch lets float32 convolutions use TF32, and products only if the user asks for it.
        if dtype == "float32" and (op_family == "conv" or graph.tf32_products):
            dtype = "tf32"
        rate = device.peak(dtype) * device.efficiency[op_family]
    return Speed(effective_bandwidth(device), rate, device.overhead)


def effective_bandwidth(device: Device) -> float:
    """Returns the bytes/s that elementwise operators read and write in a device's memory."""
    return device.bandwidth * device.efficiency["memory"]


class MemoryRate(NamedTuple):
    """How fast a device reads and writes memory in a pass: bytes/s, and fixed seconds."""

    bandwidth: float
    overhead: float


def merge_rate(device: Device) -> MemoryRate:
    """Returns the rate of merges of partial results."""
    return MemoryRate(effective_bandwidth(device), device.overhead)


def update_rate(device: Device, profile: Profile | None) -> MemoryRate:
    """Returns the rate of updates of parameters. A profile has measured all updates of a step together."""
    if profile is not None and profile.blocks is not None and profile.blocks.check_device(device):
        return MemoryRate(profile.blocks.update_bandwidth, 0.0)
    return merge_rate(device)


def memory_pass_seconds(nbytes: Any, bandwidth: Any, overhead: Any) -> Any:
    """Returns the seconds to read or write `nbytes` of memory, as merges and updates do."""
    return nbytes / bandwidth + overhead


def roofline(
    graph: Graph,
    op: Op,
    flops: Any,
    elements: Sequence[Any],
    speed: Speed,
    maximum: Callable[[Any, Any], Any] = max,
    *,
    operand: int | None = None,
) -> Any:
    """Returns the seconds of an amount of work, by the roofline.

    elements: the numbers of elements read of each input, then written of each output. flops, elements and
    speed may be arrays; then `maximum` has to be np.maximum. operand: the number of the operand whose
    gradient is computed; None: this is the forward. Under autocast, a forward first casts operands of other
    dtypes, and a backward casts the gradient back: a kernel each, which reads and writes memory.
    """
    if op.traits.is_view:
        return speed.overhead
    cast = graph.casts.get(op.name)
    dtypes = [graph.values[n].dtype for n in (*op.inputs, *op.outputs)]
    used = [*(cast_dtype(t, cast) for t in dtypes[: len(op.inputs)]), *dtypes[len(op.inputs) :]]
    seconds = sum(e * t.itemsize for e, t in zip(elements, used, strict=True)) / speed.bandwidth
    if family(op) != "memory":
        seconds = maximum(seconds, flops / speed.flop_rate)
    for i in range(len(op.inputs)):
        if dtypes[i] != used[i] and operand in (None, i):
            nbytes = elements[i] * (dtypes[i].itemsize + used[i].itemsize)
            seconds = seconds + memory_pass_seconds(nbytes, speed.bandwidth, speed.overhead)
    return seconds + speed.overhead
