"""Seconds that a box of an operator takes on a device: measured, or a roofline with efficiencies by family.

An operator takes what its operations or what its bytes take, whichever is longer, and a fixed overhead.
Both are read off its line of notation for exactly the box that is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from raddle.clusters import Device
from raddle.costs.native_calls import NativeCall, find_native_calls
from raddle.costs.profile import Profile, native_call_key, profile_key
from raddle.graph.box import Box
from raddle.graph.gradients import operands_with_gradient
from raddle.graph.graph import Graph, Op
from raddle.graph.ops import work


def family(op: Op) -> str:
    """Which efficiency applies: conv, matmul, attention, or memory for all that is bound by it."""
    if op.traits.family == "attention":
        return "attention"
    if not op.space.is_product:
        return "memory"
    return op.traits.family or "matmul"


class ComputeCosts:
    """Seconds of operators, remembered by what they depend on; a profile comes before the roofline."""

    def __init__(
        self,
        graph: Graph,
        active: frozenset[str],
        profile: Profile | None = None,
        *,
        split_backward: bool = False,  # gradients of parameters apart from those of activations
        bn: str = "global",  # what batch statistics are of, as a plan has it
        native_calls: Mapping[str, NativeCall]
        | None = None,  # by operator; None: all that there are
    ) -> None:
        self.graph, self.profile, self.bn = graph, profile, bn
        candidates = find_native_calls(graph) if native_calls is None and profile else native_calls
        # A backward in two parts is cut around operators with parameters (program/segments.py).
        self.native_calls = {
            name: call for name, call in (candidates or {}).items()
            if profile and not (split_backward and call.has_parameters)
        }  # fmt: skip
        self.grad_operands: dict[
            tuple[str, str], tuple[int, ...]
        ] = {}  # operator, phase -> operands
        self.all_grad_operands: dict[str, tuple[int, ...]] = {}  # operator -> operands of both
        for op in graph.ops:
            with_gradient = operands_with_gradient(op, active)
            weights = [i for i in with_gradient if graph.values[op.inputs[i]].role == "parameter"]
            self.all_grad_operands[op.name] = with_gradient
            self.grad_operands[op.name, "W"] = tuple(weights) if split_backward else ()
            self.grad_operands[op.name, "B"] = tuple(
                i for i in with_gradient if not split_backward or i not in weights
            )
        self.dtypes = {
            op.name: (*(graph.values[i].dtype for i in op.inputs), *op.dtypes) for op in graph.ops
        }
        self.cache: dict[tuple[object, ...], float] = {}

    def seconds(self, op: Op, box: Box, phase: str, device: Device) -> float:
        """Forward ("F", again "R"), or backward ("B", "W"): the gradients of operands that need one."""
        grad_operands = self.grad_operands.get((op.name, phase))
        if op.name in self.native_calls:
            call_seconds = self._measured_native_call(op, box, phase, device.kind)
            if call_seconds is not None:
                return call_seconds
        key = (*self.cost_key(op, phase), box, device.kind)
        seconds = self.cache.get(key)
        if seconds is None:
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
        """Equal for operators whose tiles of one shape take equally long."""
        # Spaces are shared by operators that are alike, so their identity stands for their content.
        content = (
            id(op.space),
            op.kind,
            self.dtypes[op.name],
            self.grad_operands.get((op.name, phase)),
        )
        # A profile tells them apart by more, and has native calls of some.
        return content if self.profile is None else (*content, self._profile_keys[op.name])

    @cached_property
    def _profile_keys(self) -> Mapping[str, str]:
        """By operator, what a profile calls it, and the native call that it is a part of."""
        keys = {op.name: profile_key(op, op.space.full, "F", None, "") for op in self.graph.ops}
        for name, call in self.native_calls.items():
            call_key = native_call_key(call, call.main.space.full, "F", None, "")
            keys[name] += f" {call.time_shares[name]} {call_key}"
        return keys

    def measured_seconds(self, op: Op, box: Box, phase: str, device_kind: str) -> float | None:
        """As `seconds`, where the profile has it."""
        call_seconds = (
            self._measured_native_call(op, box, phase, device_kind)
            if op.name in self.native_calls
            else None
        )
        if call_seconds is not None:
            return call_seconds
        return self._measured_op(op, box, self.grad_operands.get((op.name, phase)), device_kind)

    def _measured_op(
        self, op: Op, box: Box, grad_operands: Sequence[int] | None, device_kind: str
    ) -> float | None:
        if self.profile is None:
            return None
        return self.profile.find(
            op, box, "F" if grad_operands is None else "B", grad_operands, device_kind
        )

    def _measured_part(
        self, op: Op, box: Box, grad_operands: Sequence[int], device: Device
    ) -> float | None:
        """Of a backward in two parts that was measured as one: what the roofline says of a part."""
        both = self.all_grad_operands[op.name]
        measured = (
            self._measured_op(op, box, both, device.kind) if tuple(grad_operands) != both else None
        )
        if measured is None:
            return None
        return (
            measured
            * self._roofline_seconds(op, box, grad_operands, device)
            / self._roofline_seconds(op, box, both, device)
        )

    def _measured_native_call(self, op: Op, box: Box, phase: str, device_kind: str) -> float | None:
        """Of a composite that is one call there: an operator's part of the call's seconds.

        Of a backward in two parts the first has all: what the second needs falls out of it.
        """
        call = self.native_calls[op.name]
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
        amounts = (
            [work(op, box)] if grad_operands is None else [work(op, box, i) for i in grad_operands]
        )
        seconds = (
            roofline(self.graph, op, w.flops, w.elements, speed(op, device)) for w in amounts
        )
        return sum(seconds, 0.0)


class Speed(NamedTuple):
    """What a device does, or several devices do (then these are arrays), for operators of a kind."""

    bandwidth: Any  # bytes a second
    flop_rate: Any  # operations a second; infinite where memory alone counts
    overhead: Any  # seconds before anything is done


def speed(op: Op, device: Device) -> Speed:
    """How fast a device is at an operator."""
    op_family, rate = family(op), math.inf
    if op_family != "memory":
        peak = device.peak(str(op.dtypes[0]).removeprefix("torch."))
        rate = peak * device.efficiency[op_family]
    return Speed(effective_bandwidth(device), rate, device.overhead)


def effective_bandwidth(device: Device) -> float:
    """Bytes a second that a device reads and writes."""
    return device.bandwidth * device.efficiency["memory"]


def memory_pass_seconds(nbytes: Any, bandwidth: Any, overhead: Any) -> Any:
    """Seconds to pass over so many bytes of memory, as merges and updates do."""
    return nbytes / bandwidth + overhead


def roofline(
    graph: Graph,
    op: Op,
    flops: Any,
    elements: Sequence[Any],
    speed: Speed,
    maximum: Callable[[Any, Any], Any] = max,
) -> Any:
    """Seconds of an amount of work: operations, and elements by operand. Arrays need `np.maximum`."""
    if op.traits.is_view:
        return speed.overhead
    values = [graph.values[n] for n in (*op.inputs, *op.outputs)]
    nbytes = sum(e * v.dtype.itemsize for e, v in zip(elements, values, strict=True))
    seconds = nbytes / speed.bandwidth
    if family(op) != "memory":
        seconds = maximum(seconds, flops / speed.flop_rate)
    return seconds + speed.overhead
