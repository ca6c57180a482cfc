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
from raddle.costs.natives import Native, natives_of
from raddle.costs.profile import Profile, entry, native_entry
from raddle.graph.box import Box
from raddle.graph.gradients import graded_operands
from raddle.graph.graph import Graph, Op
from raddle.graph.ops import work


def family(op: Op) -> str:
    """Which efficiency applies: conv, matmul, attention, or memory for all that is bound by it."""
    if op.traits.family == "attention":
        return "attention"
    if not op.space.product:
        return "memory"
    return op.traits.family or "matmul"


class Compute:
    """Seconds of operators, remembered by what they depend on; a profile comes before the roofline."""

    def __init__(
        self,
        graph: Graph,
        active: frozenset[str],
        profile: Profile | None = None,
        *,
        split: bool = False,  # gradients of parameters apart from those of activations
        bn: str = "global",  # what batch statistics are of, as a plan has it
        natives: Mapping[str, Native] | None = None,  # by operator; None: all that there are
    ) -> None:
        self.graph, self.profile, self.bn = graph, profile, bn
        given = natives_of(graph) if natives is None and profile else natives
        # A backward in two parts is cut around operators with parameters (program/segments.py).
        self.natives = {
            name: native for name, native in (given or {}).items()
            if profile and not (split and native.weighted)
        }  # fmt: skip
        self.wanted: dict[tuple[str, str], tuple[int, ...]] = {}  # operator, phase -> operands
        self.graded: dict[str, tuple[int, ...]] = {}  # operator -> operands of both
        for op in graph.ops:
            graded = graded_operands(op, active)
            weights = [i for i in graded if graph.values[op.inputs[i]].role == "parameter"]
            self.graded[op.name] = graded
            self.wanted[op.name, "W"] = tuple(weights) if split else ()
            self.wanted[op.name, "B"] = tuple(i for i in graded if not split or i not in weights)
        self.dtypes = {
            op.name: (*(graph.values[i].dtype for i in op.inputs), *op.dtypes) for op in graph.ops
        }
        self.known: dict[tuple[object, ...], float] = {}

    def seconds(self, op: Op, box: Box, phase: str, device: Device) -> float:
        """Forward ("F", again "R"), or backward ("B", "W"): the gradients of operands that need one."""
        wanted = self.wanted.get((op.name, phase))
        if op.name in self.natives:
            native = self._native(op, box, phase, device.kind)
            if native is not None:
                return native
        key = (*self.alike(op, phase), box, device.kind)
        seconds = self.known.get(key)
        if seconds is None:
            measured = self._apart(op, box, wanted, device.kind)
            if measured is None and wanted:
                measured = self._share(op, box, wanted, device)
            seconds = self._seconds(op, box, wanted, device) if measured is None else measured
            self.known[key] = seconds
        return seconds

    def alike(self, op: Op, phase: str) -> tuple[object, ...]:
        """Equal for operators whose tiles of one shape take equally long."""
        # Spaces are shared by operators that are alike, so their identity stands for their content.
        content = (id(op.space), op.kind, self.dtypes[op.name], self.wanted.get((op.name, phase)))
        # A profile tells them apart by more, and has native calls of some.
        return content if self.profile is None else (*content, self._entries[op.name])

    @cached_property
    def _entries(self) -> Mapping[str, str]:
        """By operator, what a profile calls it, and the native call that it is a part of."""
        own = {op.name: entry(op, op.space.full, "F", None, "") for op in self.graph.ops}
        for name, native in self.natives.items():
            said = native_entry(native, native.main.space.full, "F", None, "")
            own[name] += f" {native.shares[name]} {said}"
        return own

    def measured(self, op: Op, box: Box, phase: str, kind: str) -> float | None:
        """As `seconds`, where the profile has it."""
        native = self._native(op, box, phase, kind) if op.name in self.natives else None
        if native is not None:
            return native
        return self._apart(op, box, self.wanted.get((op.name, phase)), kind)

    def _apart(self, op: Op, box: Box, wanted: Sequence[int] | None, kind: str) -> float | None:
        if self.profile is None:
            return None
        return self.profile.find(op, box, "F" if wanted is None else "B", wanted, kind)

    def _share(self, op: Op, box: Box, wanted: Sequence[int], device: Device) -> float | None:
        """Of a backward in two parts that was measured as one: what the roofline says of a part."""
        both = self.graded[op.name]
        measured = self._apart(op, box, both, device.kind) if tuple(wanted) != both else None
        if measured is None:
            return None
        return (
            measured * self._seconds(op, box, wanted, device) / self._seconds(op, box, both, device)
        )

    def _native(self, op: Op, box: Box, phase: str, kind: str) -> float | None:
        """Of a composite that is one call there: an operator's part of the call's seconds.

        Of a backward in two parts the first has all: what the second needs falls out of it.
        """
        own = self.natives[op.name]
        if not own.whole(op, box, self.bn):
            return None
        back = (own.main.name, phase) in self.wanted
        graded = self.graded[own.main.name] if back else None
        assert self.profile is not None
        tile = own.tile(op, box)
        found = self.profile.find_native(own, tile, "B" if back else "F", graded, kind)
        return None if found is None else found * own.shares[op.name] * (phase != "W")

    def _seconds(self, op: Op, box: Box, wanted: Sequence[int] | None, device: Device) -> float:
        works = [work(op, box)] if wanted is None else [work(op, box, i) for i in wanted]
        each = (roofline(self.graph, op, w.flops, w.elements, speed(op, device)) for w in works)
        return sum(each, 0.0)


class Speed(NamedTuple):
    """What a device does, or several devices do (then these are arrays), for operators of a kind."""

    memory: Any  # bytes a second
    rate: Any  # operations a second; infinite where memory alone counts
    overhead: Any  # seconds before anything is done


def speed(op: Op, device: Device) -> Speed:
    """How fast a device is at an operator."""
    which, rate = family(op), math.inf
    if which != "memory":
        peak = device.peak(str(op.dtypes[0]).removeprefix("torch."))
        rate = peak * device.efficiency[which]
    return Speed(memory_speed(device), rate, device.overhead)


def memory_speed(device: Device) -> float:
    """Bytes a second that a device reads and writes."""
    return device.bandwidth * device.efficiency["memory"]


def pass_seconds(nbytes: Any, memory: Any, overhead: Any) -> Any:
    """Seconds to pass over so many bytes of memory, as merges and updates do."""
    return nbytes / memory + overhead


def roofline(
    graph: Graph,
    op: Op,
    flops: Any,
    elements: Sequence[Any],
    speed: Speed,
    maximum: Callable[[Any, Any], Any] = max,
) -> Any:
    """Seconds of an amount of work: operations, and elements by operand. Arrays need `np.maximum`."""
    if op.traits.view:
        return speed.overhead
    values = [graph.values[n] for n in (*op.inputs, *op.outputs)]
    nbytes = sum(e * v.dtype.itemsize for e, v in zip(elements, values, strict=True))
    seconds = nbytes / speed.memory
    if family(op) != "memory":
        seconds = maximum(seconds, flops / speed.rate)
    return seconds + speed.overhead
