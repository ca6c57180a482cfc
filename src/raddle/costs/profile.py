"""Profiles: measured seconds of operators, which are used instead of the roofline where they exist.

A profile is a JSON file that a user can keep and copy. Its keys say what was run (the operator's notation
and attributes, the shape of the box, the dtype, forward or backward) on which kind of device; its values
are seconds. It may also have the measured blocks of a model (measured_blocks.py), which come before these.

Arguments: phase is "F" (forward) or "B" (backward); grad_operands are the numbers of the operands whose
gradients the backward computes, None for a forward; device_kind is Device.kind of the cluster.
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

from raddle.costs.measured_blocks import MeasuredBlocks, read_blocks
from raddle.costs.native_calls import NativeCall, find_native_calls
from raddle.errors import InputError, quote
from raddle.files import Fields, read_json, write_json
from raddle.graph.box import Box, bounding_box
from raddle.graph.dtypes import carries_gradient
from raddle.graph.graph import Graph, Op, Value
from raddle.graph.ops import make_kernel
from raddle.graph.ops.fused import FUSED_KERNELS
from raddle.plans.tiling import Tiling

VERSION = 2
MAX_SECONDS = 1e6  # of an operator; longer times in a file are an error
NATIVE_CALL = "native"  # marks keys of native calls (native_calls.py)


class Profile:
    """Measured seconds by key (`profile_key`, `native_call_key`), and the measured blocks of a model."""

    def __init__(
        self, seconds: Mapping[str, float] | None = None, blocks: MeasuredBlocks | None = None
    ) -> None:
        self.seconds, self.blocks = dict(seconds or {}), blocks

    def find(
        self, op: Op, box: Box, phase: str, grad_operands: Sequence[int] | None, device_kind: str
    ) -> float | None:
        """Returns the seconds of an operator, or None if it was not measured."""
        return self.seconds.get(profile_key(op, box, phase, grad_operands, device_kind))

    def find_native_call(
        self,
        call: NativeCall,
        box: Box,
        phase: str,
        grad_operands: Sequence[int] | None,
        device_kind: str,
    ) -> float | None:
        """Returns the seconds of a native call, or None; box: a tile of the operator `NativeCall.main`."""
        return self.seconds.get(native_call_key(call, box, phase, grad_operands, device_kind))

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the profile as a JSON file."""
        blocks = None if self.blocks is None else self.blocks.to_dict()
        seconds = dict(sorted(self.seconds.items()))
        write_json(path, {"raddle-profile": VERSION, "seconds": seconds, "blocks": blocks})


def load_profile(path: str | pathlib.Path) -> Profile:
    """Reads a file that `Profile.save` wrote; InputError if a time is negative or too long."""
    data = read_json(path, "profile", missing_hint="write one with raddle probe")
    version = data.get("raddle-profile") if isinstance(data, dict) else None
    if type(version) is not int or version != VERSION:
        raise InputError(f"{quote(path)} is no profile of version {VERSION}: measure again.")
    fields = Fields.from_data(data, quote(path), ["seconds", "blocks"])
    seconds, blocks = fields.object("seconds"), fields.data["blocks"]
    return Profile(
        {name: seconds.number(name, 0, MAX_SECONDS) for name in seconds.data},
        None if blocks is None else read_blocks(blocks, quote(path)),
    )


def profile_key(
    op: Op, box: Box, phase: str, grad_operands: Sequence[int] | None, device_kind: str
) -> str:
    """Returns the key of a measurement. Equal operators of different models have the same key."""
    # Dropouts differ in their random streams, but not in their time.
    relevant = sorted((name, value) for name, value in op.attrs.items() if name != "stream")
    attrs = hashlib.sha256(repr(relevant).encode()).hexdigest()[:8]
    extents = "x".join(map(str, box.shape))
    gradients = "" if grad_operands is None else "/" + ",".join(map(str, grad_operands))
    return f"{device_kind}|{op.label}|{op.notation}|{attrs}|{extents}|{op.dtypes[0]}|{phase}{gradients}"


def native_call_key(
    call: NativeCall, box: Box, phase: str, grad_operands: Sequence[int] | None, device_kind: str
) -> str:
    """Returns the key of a native call; box: a tile of its main operator."""
    return (
        f"{profile_key(call.main, box, phase, grad_operands, device_kind)}"
        f"|{NATIVE_CALL} {call.fingerprint}"
    )


def distinct_tiles(
    graph: Graph, tiles: Mapping[str, Tiling], device_kind: str
) -> dict[str, tuple[Op, Box]]:
    """Returns one tile, by its key, for each distinct measurement that the tiles of a plan need.

    tiles: by operator. A native call is one PyTorch call for several operators; its main operator, of which
    a tile stands for the call, is one of them (native_calls.py).
    """
    calls = find_native_calls(graph)
    tile_by_key: dict[str, tuple[Op, Box]] = {}
    for op in graph.ops:
        call = calls.get(op.name)
        for box in tiles[op.name].boxes:
            key = profile_key(op, box, "F", None, device_kind)
            # For the main operator of a native call, `measure` also times the call. It needs a key of its
            # own, because an equal operator that is in no native call may have the same profile_key.
            if call is not None and call.main is op:
                key = native_call_key(call, box, "F", None, device_kind)
            tile_by_key.setdefault(key, (op, box))
    return tile_by_key


def measure(
    graph: Graph,
    boxes: Iterable[tuple[Op, Box]],
    grad_operands: Mapping[str, Sequence[int]],
    device_kind: str,
    device: str = "cpu",
    *,
    previous: Profile | None = None,
    repeats: int = 5,
    progress: Callable[[str], None] = lambda name: None,
) -> Profile:
    """Measures each box, forward and backward, on random tensors; returns a profile.

    boxes: (operator, box of it) pairs; grad_operands: by operator, the numbers of its operands with a
    gradient; device: the PyTorch device to measure on; previous: a profile whose measurements are taken
    over; repeats: number of timed calls, whose median counts; progress: called with the name of each
    operator before it is measured.
    """
    profile = Profile(previous.seconds, previous.blocks) if previous else Profile()
    calls = find_native_calls(graph)
    for op, box in boxes:
        operands_of_op = tuple(grad_operands[op.name])  # the operands with a gradient
        forward = profile_key(op, box, "F", None, device_kind)
        backward = profile_key(op, box, "B", operands_of_op, device_kind)
        progress(op.name)
        if forward not in profile.seconds or (operands_of_op and backward not in profile.seconds):
            times = _measure_op(graph, op, box, operands_of_op, torch.device(device), repeats)
            profile.seconds[forward] = times[0]
            if operands_of_op:
                profile.seconds[backward] = times[1]
        call = calls.get(op.name)
        if call is None or op is not call.main or not call.accepts(box):
            continue
        forward, backward = (
            native_call_key(call, box, phase, operands, device_kind)
            for phase, operands in (("F", None), ("B", operands_of_op))
        )
        if forward not in profile.seconds:
            grad_inputs = {
                call_op.inputs[k] for call_op in call.ops for k in grad_operands[call_op.name]
            }
            times = _measure_native_call(
                graph, call, box, grad_inputs, torch.device(device), repeats
            )
            profile.seconds[forward] = times[0]
            if operands_of_op:
                profile.seconds[backward] = times[1]
    return profile


def _measure_op(
    graph: Graph, op: Op, box: Box, grad_operands: Sequence[int], device: torch.device, repeats: int
) -> tuple[float, float]:
    """Returns the seconds (forward, backward) of a box of an operator."""
    operands = [
        None if region is None else _random_tensor(graph.values[name], region, device)
        for name, region in zip(op.inputs, op.space.regions(box), strict=True)
    ]
    for i in grad_operands:
        tensor = operands[i]
        operands[i] = tensor.requires_grad_() if tensor is not None else None
    return _time_call(make_kernel(op, box, device), operands, device, repeats)


def _measure_native_call(
    graph: Graph,
    call: NativeCall,
    box: Box,
    grad_inputs: set[str],
    device: torch.device,
    repeats: int,
) -> tuple[float, float]:
    """Returns the seconds (forward, backward) of a native call; box: a tile of its main operator.

    Buffers (the running statistics of a batch norm) are not given to the call: updating them takes little
    time. grad_inputs: names of the values that need a gradient.
    """
    regions: dict[str, Box] = {}  # by value, the box of its elements that the call reads
    for op in call.ops:
        for name, region in zip(op.inputs, op.space.regions(call.op_tile(op, box)), strict=True):
            if region is not None and graph.values[name].role != "buffer":
                regions[name] = bounding_box([regions.get(name, region), region])
    operands = [
        _random_tensor(graph.values[i], regions[i], device).requires_grad_(i in grad_inputs)
        if i is not None and i in regions
        else None
        for i in call.fused.inputs
    ]
    return _time_call(FUSED_KERNELS[call.fused.kind](call.fused.attrs), operands, device, repeats)


def _time_call(
    run: Callable[..., Any], operands: Sequence[Tensor | None], device: torch.device, repeats: int
) -> tuple[float, float]:
    """Returns the median seconds (forward, backward) of `repeats` calls, after one warm-up call."""
    leaves = [t for t in operands if t is not None and t.requires_grad]
    forward, backward = [], []
    for _ in range(repeats + 1):
        start = _now(device)
        results = run(*operands)
        middle = _now(device)
        grad_results = [t for t in results if t.requires_grad]
        if leaves and grad_results:
            torch.autograd.grad(
                grad_results, leaves, [torch.ones_like(t) for t in grad_results], allow_unused=True
            )
        forward.append(middle - start)
        backward.append(_now(device) - middle)
    return statistics.median(forward[1:]), statistics.median(backward[1:])


def _random_tensor(value: Value, region: Box, device: torch.device) -> Tensor:
    if carries_gradient(value.dtype):
        return torch.rand(region.shape, device=device).to(value.dtype)  # rand supports few dtypes
    return torch.zeros(region.shape, dtype=value.dtype, device=device)


def _now(device: torch.device) -> float:
    """Returns the time in seconds at which the device has finished all work submitted so far."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
