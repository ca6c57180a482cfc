"""Measured seconds of operators: used instead of the roofline where there are any.

A profile is a file of plain JSON that travels with its user: what was run (the line of notation, the
kernel's attributes, the shape of the box, the dtype, forward or backward) on which kind of device, and
the seconds it took.
"""

from __future__ import annotations

import hashlib
import pathlib
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raddle.costs.natives import Native, natives_of
from raddle.errors import InputError, quote
from raddle.files import Fields, read_json, write_json
from raddle.graph.box import Box, hull
from raddle.graph.dtypes import carries_gradient
from raddle.graph.graph import Graph, Op, Value
from raddle.graph.ops import kernel
from raddle.graph.ops.fused import FUSED
from raddle.plans.tiling import Tiling

VERSION = 1
LONGEST = 1e6  # seconds of an operator
NATIVE = "native"  # one call in place of several operators


class Profile:
    """Measured seconds, by what was measured."""

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        self.seconds = dict(seconds or {})

    def find(
        self, op: Op, box: Box, phase: str, wanted: Sequence[int] | None, kind: str
    ) -> float | None:
        return self.seconds.get(entry(op, box, phase, wanted, kind))

    def find_native(
        self, native: Native, box: Box, phase: str, wanted: Sequence[int] | None, kind: str
    ) -> float | None:
        """Of a call that stands for all of a composite, on a tile of its main operator."""
        return self.seconds.get(native_entry(native, box, phase, wanted, kind))

    def save(self, path: str | pathlib.Path) -> None:
        data = {"raddle-profile": VERSION, "seconds": dict(sorted(self.seconds.items()))}
        write_json(path, data)


def load_profile(path: str | pathlib.Path) -> Profile:
    """A profile that `Profile.save` wrote; every time in it is one that an operator can take."""
    data = read_json(path, "profile", missing="write one with raddle probe")
    version = data.get("raddle-profile") if isinstance(data, dict) else None
    if type(version) is not int or version != VERSION:
        raise InputError(f"{quote(path)} is no profile of version {VERSION}: measure again.")
    seconds = Fields.of(data, quote(path), ["seconds"]).object("seconds")
    return Profile({name: seconds.number(name, 0, LONGEST) for name in seconds.data})


def entry(op: Op, box: Box, phase: str, wanted: Sequence[int] | None, kind: str) -> str:
    """What was measured, as text that does not depend on where in a model it stands."""
    attrs = hashlib.sha256(repr(sorted(op.attrs.items())).encode()).hexdigest()[:8]
    extents = "x".join(map(str, box.shape))
    gradients = "" if wanted is None else "/" + ",".join(map(str, wanted))
    return f"{kind}|{op.label}|{op.line}|{attrs}|{extents}|{op.dtypes[0]}|{phase}{gradients}"


def native_entry(
    native: Native, box: Box, phase: str, wanted: Sequence[int] | None, kind: str
) -> str:
    return f"{entry(native.main, box, phase, wanted, kind)}|{NATIVE} {native.content}"


def distinct(graph: Graph, tiles: Mapping[str, Tiling], kind: str) -> dict[str, tuple[Op, Box]]:
    """A tile for each thing that `measure` would measure apart, by a name of it."""
    natives = natives_of(graph)
    found: dict[str, tuple[Op, Box]] = {}
    for op in graph.ops:
        native = natives.get(op.name)
        for box in tiles[op.name].boxes:
            name = entry(op, box, "F", None, kind)
            if native is not None and native.main is op:  # it may look like operators that are not
                name = native_entry(native, box, "F", None, kind)
            found.setdefault(name, (op, box))
    return found


def measure(
    graph: Graph,
    boxes: Iterable[tuple[Op, Box]],
    wanted: Mapping[str, Sequence[int]],
    kind: str,
    device: str = "cpu",
    *,
    known: Profile | None = None,
    repeats: int = 5,
    progress: Callable[[str], None] = lambda name: None,
) -> Profile:
    """Runs each box (and its backward) on random tensors; what is known is not measured again."""
    found = Profile(known.seconds if known else None)
    natives = natives_of(graph)
    for op, box in boxes:
        back = tuple(wanted[op.name])
        forward = entry(op, box, "F", None, kind)
        backward = entry(op, box, "B", back, kind)
        progress(op.name)
        if forward not in found.seconds or (back and backward not in found.seconds):
            times = _measure(graph, op, box, back, torch.device(device), repeats)
            found.seconds[forward] = times[0]
            if back:
                found.seconds[backward] = times[1]
        native = natives.get(op.name)
        if native is None or op is not native.main or not native.runs(box):
            continue
        forward, backward = (
            native_entry(native, box, phase, own, kind) for phase, own in (("F", None), ("B", back))
        )
        if forward not in found.seconds:
            graded = {i.inputs[k] for i in native.ops for k in wanted[i.name]}
            times = _measure_native(graph, native, box, graded, torch.device(device), repeats)
            found.seconds[forward] = times[0]
            if back:
                found.seconds[backward] = times[1]
    return found


def _measure(
    graph: Graph, op: Op, box: Box, wanted: Sequence[int], device: torch.device, repeats: int
) -> tuple[float, float]:
    operands = [
        None if region is None else _random(graph.values[name], region, device)
        for name, region in zip(op.inputs, op.space.regions(box), strict=True)
    ]
    for i in wanted:
        tensor = operands[i]
        operands[i] = tensor.requires_grad_() if tensor is not None else None
    return _time(kernel(op, box, device), operands, device, repeats)


def _measure_native(
    graph: Graph, native: Native, box: Box, graded: set[str], device: torch.device, repeats: int
) -> tuple[float, float]:
    """On a tile of the main operator; running statistics, which are small, are left out."""
    regions: dict[str, Box] = {}
    for op in native.ops:
        for name, region in zip(op.inputs, op.space.regions(native.part(op, box)), strict=True):
            if region is not None and graph.values[name].role != "buffer":
                regions[name] = hull([regions.get(name, region), region])
    operands = [
        _random(graph.values[i], regions[i], device).requires_grad_(i in graded)
        if i is not None and i in regions
        else None
        for i in native.fused.inputs
    ]
    return _time(FUSED[native.fused.kind](native.fused.attrs), operands, device, repeats)


def _time(
    run: Callable[..., Any], operands: Sequence[Tensor | None], device: torch.device, repeats: int
) -> tuple[float, float]:
    """Seconds of a call and of its backward: medians, after one that warms up."""
    leaves = [t for t in operands if t is not None and t.requires_grad]
    forward, backward = [], []
    for _ in range(repeats + 1):
        start = _now(device)
        results = run(*operands)
        middle = _now(device)
        graded = [t for t in results if t.requires_grad]
        if leaves and graded:
            torch.autograd.grad(
                graded, leaves, [torch.ones_like(t) for t in graded], allow_unused=True
            )
        forward.append(middle - start)
        backward.append(_now(device) - middle)
    return statistics.median(forward[1:]), statistics.median(backward[1:])


def _random(value: Value, region: Box, device: torch.device) -> Tensor:
    if carries_gradient(value.dtype):
        return torch.rand(region.shape, device=device).to(value.dtype)  # of all types it draws few
    return torch.zeros(region.shape, dtype=value.dtype, device=device)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
