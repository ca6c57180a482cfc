"""Simulated memory: by hand, against a replay with dictionaries, and against what PyTorch saves."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import SYNCS, cluster_named, random_plan
from small_models import MODELS, make_plan, mlp, small
from torch import Tensor, nn
from torch.nn import functional as F

from raddle import zoo
from raddle.clusters import cluster
from raddle.costs.saved_for_backward import saved_for_backward
from raddle.graph.capture import capture
from raddle.graph.graph import Graph, Op
from raddle.graph.supervised import supervised
from raddle.plans.native_dropout import with_planned_dropout
from raddle.plans.plan import DROPOUT_KINDS
from raddle.program.collective_kind import Collective
from raddle.program.lower import lower
from raddle.program.parameter_region import ParameterRegion
from raddle.program.program import (
    Gather,
    Merge,
    Move,
    Program,
    Reduce,
    Run,
    Update,
    message_bytes,
    tensors_per_part,
)
from raddle.program.segments import segments
from raddle.simulation.memory.peaks import memory_curve, peak_bytes
from raddle.simulation.timeline import Timeline, simulate

# -- by hand --------------------------------------------------------------------------------------

#   x[2 4]      32 bytes     fc1, relu   64 bytes each     fc2   16 bytes     loss   4 bytes
#   parameters and gradients: 2 × (128 + 32) of fc1, 2 × (64 + 8) of fc2


def level(timeline: Timeline, device: int, op: str, phase: str) -> int:
    """Bytes on a device while it runs an operator."""
    number = next(
        n
        for n, i in enumerate(timeline.program.instructions)
        if isinstance(i, Run) and (i.op, i.phase) == (op, phase)
    )
    mine = (timeline.tasks.instruction == number) & (timeline.tasks.device == device)
    (task,) = np.flatnonzero(mine)
    times, nbytes = memory_curve(timeline, device)
    ends = (timeline.start[task], timeline.end[task] - 1)
    levels = {int(nbytes[np.searchsorted(times, t, "right") - 1]) for t in ends}
    assert len(levels) == 1
    return levels.pop()


def test_one_device_by_hand() -> None:
    timeline = simulate(lower(mlp(), make_plan(mlp(), {}, 1)), cluster("p100:1x1"))
    always = 464
    forward = [(op, "F") for op in ("fc1", "relu", "fc2", "sum")]
    runs = [*forward, *((op, "B") for op, _ in reversed(forward))]
    # x lives until the gradient of fc1's weight; relu's output until relu's backward; fc1's output only
    # until relu has read it.
    assert [level(timeline, 0, *run) - always for run in runs] == [
        32 + 64,  # x, fc1
        32 + 64 + 64,  # x, fc1, relu
        32 + 64 + 16,  # x, relu, fc2
        32 + 64 + 16 + 4,  # x, relu, fc2, loss
        32 + 64 + 16,  # x, relu, gradient of fc2
        32 + 64 + 16 + 64,  # x, relu, gradients of fc2 and relu
        32 + 64 + 64 + 64,  # x, relu, gradients of relu and fc1
        32 + 64,  # x, gradient of fc1
    ]
    assert peak_bytes(timeline) == [always + 224]
    assert memory_curve(timeline, 0)[1][-1] == always


def test_two_devices_by_hand() -> None:
    tiles = {"fc2": "@1", "sum": "@1"}
    timeline = simulate(lower(mlp(), make_plan(mlp(), tiles, 2)), cluster("p100:1x2"))
    assert level(timeline, 0, "relu", "F") == 320 + 32 + 64 + 64
    assert level(timeline, 1, "fc2", "F") == 144 + 64 + 16  # relu's output, received
    assert level(timeline, 1, "fc2", "B") == 144 + 64 + 16 + 64  # and its gradient, to be sent
    assert level(timeline, 0, "relu", "B") == 320 + 32 + 64 + 64 + 64
    ways = list(zip(timeline.tasks.source.tolist(), timeline.tasks.device.tolist(), strict=True))
    there, back = ways.index((0, 1)), ways.index((1, 0))
    times, nbytes = memory_curve(timeline, 1)
    assert nbytes[np.searchsorted(times, timeline.start[there])] == 144 + 64  # still on its way
    assert nbytes[-1] == 144
    times, nbytes = memory_curve(timeline, 0)
    # On its way back it is there twice: as it arrives, and where it is added up.
    assert nbytes[np.searchsorted(times, timeline.start[back])] == 320 + 32 + 64 + 2 * 64


@pytest.mark.parametrize(("optimizer", "state"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
@pytest.mark.parametrize("sync", [*SYNCS, "ps:sliced,unbundled"])
def test_parameters_by_hand(optimizer: str, state: int, sync: str) -> None:
    tiles = {"fc1": "n/2 @0,1", "relu": "n/2 @0,1", "fc2": "n/2 @0,1"}
    program = lower(mlp(), make_plan(mlp(), tiles, 2, optimizer=optimizer, sync=sync))
    timeline = simulate(program, cluster("p100:1x2"))
    last = [int(memory_curve(timeline, d)[1][-1]) for d in (0, 1)]
    everywhere = ("allreduce", "p3:collective")
    # ps:sliced has one bundle.
    first = {"server": 232, "ps:one": 232, "ps:sliced": 232, "ps:sliced,unbundled": 192}
    first.update(dict.fromkeys(everywhere, 232))
    if sync.startswith("sharded"):  # gathered parameters and gradients are not persistent
        whole = 116 if sync.startswith("sharded:parameters") else 232
        assert last == [whole + 116 * state] * 2
        return
    updated_bytes = first.get(sync, 120)  # of parameters that device 0 updates
    other = 232 if sync in everywhere else 232 - updated_bytes
    assert last == [2 * 232 + state * updated_bytes, 2 * 232 + state * other]


class Convolved(nn.Module):
    """x[2 3 4 4] (384 bytes) -> conv[2 5 4 4] (640) -> fc[2 2] (16)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, padding=1, bias=False)
        self.fc = nn.Linear(80, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).flatten(1)).sum()


def test_workspaces_by_hand() -> None:
    """A library copies a convolution's input and output, and keeps some memory for matmuls."""
    graph = capture(Convolved(), [torch.zeros(2, 3, 4, 4)])
    program = lower(graph, make_plan(graph, {}, 1))
    plain = cluster("p100:1x1")
    taken = dataclasses.replace(plain.devices[0], workspace={"conv": 1.0, "matmul": 1000.0})
    with_it = dataclasses.replace(plain, devices=(taken,))
    before, after = simulate(program, plain), simulate(program, with_it)
    more = {
        (op, phase): level(after, 0, op, phase) - level(before, 0, op, phase)
        for op in ("conv", "fc")
        for phase in "FB"
    }
    assert more == {
        ("conv", "F"): 1000 + 384 + 640, ("conv", "B"): 1000 + 384 + 640,
        ("fc", "F"): 1000, ("fc", "B"): 1000,
    }  # fmt: skip


def test_a_stage_holds_the_gradient_that_it_receives_until_its_backward_ends() -> None:
    """The gradient that a stage receives lives until the stage is done, not only its last operator."""
    tiles = {"fc2": "@1", "sum": "@1"}
    plan = make_plan(mlp(), tiles, 2)
    staged = dataclasses.replace(plan, stages=(("fc1", "relu"), ("fc2", "sum")), schedule="gpipe")
    levels = [
        level(simulate(lower(mlp(), either), cluster("p100:1x2")), 0, "fc1", "B")
        for either in (plan, staged)
    ]
    assert levels[1] - levels[0] == 64  # of relu's output


class Early(nn.Module):
    """A value that is sent early and used late: after a chain of operators on another device."""

    def __init__(self) -> None:
        super().__init__()
        self.here = nn.Linear(4, 8, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        wide = x.repeat(1, 64).exp().exp().sum(1, keepdim=True)
        return (self.here(y) + wide).sum()


def test_messages_through_the_host_take_no_room_before_they_are_used() -> None:
    graph = capture(Early(), [torch.zeros(2, 8), torch.zeros(2, 4)])
    late = {op.name: "@1" for op in graph.ops if op.name != "here"}
    timeline = simulate(lower(graph, make_plan(graph, late, 2)), cluster("p100:1x2"))
    direct, hosted = peak_bytes(timeline), peak_bytes(timeline, through_host=True)
    assert direct[1] - hosted[1] == 2 * 8 * 4  # the output of `here`, while the chain runs
    assert direct[0] - hosted[0] == 2 * 8 * 4  # its gradient, which exists once only


# -- against a replay with dictionaries -----------------------------------------------------------


class Replay:
    """The same memory, computed simply: every device and micro-batch separately, element by element."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline, self.program = timeline, timeline.program
        self.graph, self.plan = self.program.graph, self.program.plan
        self.ops = {op.name: op for op in self.graph.ops}
        self.alive: list[tuple[int, int, int, int]] = []  # device, bytes, from, until
        self.runs: dict[Any, tuple[int, int]] = {}  # key, operator, phase, device
        self.flights: dict[Any, list[tuple[int, int, int, int, int, Any]]] = {}  # key, value, kind
        self.is_zero3 = self.plan.sync.startswith("sharded:parameters")
        self.is_sharded = self.plan.sync.startswith("sharded") and bool(self.program.active)
        self._times()
        for key in {i.key for i in self.program.instructions if isinstance(i, Run)}:
            for device in range(self.plan.devices):
                self._replay(key, device)
        for (_, _, kind), flights in self.flights.items():
            if kind in ("gradient", "partial gradient", "push", "pull"):
                self.alive += [(t, n, a, b) for _, t, n, a, b, _ in flights]
        trained = {i.parameter for i in self.program.instructions if isinstance(i, Update)}
        for name, device in itertools.product(trained, range(self.plan.devices)):
            if self.is_sharded:
                self._sharded(name, device)

    def _times(self) -> None:
        tasks = self.timeline.tasks
        self.tasks_of: dict[int, list[int]] = {}  # by instruction, its tasks
        for task, number in enumerate(tasks.instruction):
            self.tasks_of.setdefault(int(number), []).append(task)
        tasks_of = self.tasks_of
        self.waiting: dict[int, list[tuple[int, Run]]] = {}  # by instruction, runs that wait for it
        for number, i in enumerate(self.program.instructions):
            for dep in i.deps if isinstance(i, Run) else ():
                self.waiting.setdefault(dep, []).append((number, i))
        for number, i in enumerate(self.program.instructions):
            spans = [
                (int(self.timeline.start[t]), int(self.timeline.end[t])) for t in tasks_of[number]
            ]
            if isinstance(i, Run | Merge):
                phase = i.phase if isinstance(i, Run) else f"merge {i.phase}"
                for t, span in zip(tasks_of[number], spans, strict=True):
                    self.runs[i.key, i.op, phase, int(tasks.device[t])] = span
            elif isinstance(i, Move):
                self.flights.setdefault((i.key, i.value, i.kind), []).extend(
                    [
                        (m.source, m.target, message_bytes(self.program, i, m), a, b, m)
                        for m, (a, b) in zip(i.messages, spans, strict=False)
                    ]
                )

    def boxes(self, op: Op, value: str, device: int) -> list[Any]:
        """The boxes of a value that a device computes."""
        if op.name in self.program.variants[0].merges:
            return [c.box for c in self.program.variants[0].merges[op.name] if device in c.devices]
        k = op.outputs.index(value)
        tiles = self.plan.tiles[op.name].tiles
        return [op.space.output_boxes(t.box)[k] for t in tiles if t.device == device]

    def is_view(self, key: Any, op: Op, device: int) -> bool:
        if op.kind not in ("reshape", "permute", "expand", "select", "slice"):
            return False
        base = op.inputs[0]
        if self.graph.values[base].role != "op":
            return True
        held = self.boxes(self.program.producer(base), base, device)
        for _, target, *_, m in self.flights.get((key, base, "activation"), []):
            held += m.boxes if target == device else ()
        regions = [
            op.space.regions(t.box)[0] for t in self.plan.tiles[op.name].tiles if t.device == device
        ]
        return all(r is None or any(h.contains(r) for h in held) for r in regions)

    def backward_end(self, key: Any, op: str, device: int) -> int:
        return max(self.runs.get((key, op, phase, device), (-1, -1))[1] for phase in "BW")

    def recomputed_together(self, value: str, reader: Op, device: int) -> bool:
        """Whether a value and its reader are recomputed in the same segment of the device."""
        again = {name for block in self.plan.recompute for name in block}
        if self.graph.values[value].role != "op":
            return False
        producer = self.program.producer(value)
        return producer.name not in self.program.variants[0].merges and any(
            {producer.name, reader.name} <= {op.name for op in ops} & again
            for ops in segments(self.program, device)
        )

    def last_use(self, key: Any, value: str, device: int, copy: int = 1) -> int:
        """When a value is used last: its first copy, or its recomputed copy (2)."""
        ends = [-1]
        rerun = None
        if self.graph.values[value].role == "op":
            op = self.program.producer(value)
            rerun = self.runs.get((key, op.name, "R", device))
            if copy == 2 and rerun is not None:
                ends.append(rerun[1])
            if saved_for_backward(self.program.graph, self.program.active, op).output and (
                copy == 2
            ) == (rerun is not None):
                ends.append(self.backward_end(key, op.name, device))
        if copy == 1:
            ends += [
                b
                for s, _, _, _, b, _ in self.flights.get((key, value, "activation"), [])
                if s == device
            ]
            if self.graph.values[value].role == "op":
                phase = "merge F" if op.name in self.program.variants[0].merges else "F"
                ends.append(self.runs.get((key, op.name, phase, device), (-1, -1))[1])
        for op in self.graph.ops:
            if value not in op.inputs or (key, op.name, "F", device) not in self.runs:
                continue
            if copy == 1:
                ends.append(self.runs[key, op.name, "F", device][1])
            if self.recomputed_together(value, op, device) == (copy == 2):
                ends.append(self.runs.get((key, op.name, "R", device), (-1, -1))[1])
                if value in saved_for_backward(self.program.graph, self.program.active, op).inputs:
                    ends.append(self.backward_end(key, op.name, device))
            if op.inputs[0] == value and self.is_view(key, op, device):
                if copy == 1:
                    ends.append(self.last_use(key, op.outputs[0], device))
                again = (key, op.name, "R", device) in self.runs
                if again and self.recomputed_together(value, op, device) == (copy == 2):
                    ends.append(self.last_use(key, op.outputs[0], device, 2))
        return max(ends)

    def _replay(self, key: Any, device: int) -> None:
        for op in self.graph.ops:
            if op.name in self.program.variants[0].merges:
                self._parts(key, op, device)
            self._outputs(key, op, device)
            if any((key, op.name, phase, device) in self.runs for phase in ("B", "W", "merge B")):
                self._gradients(key, op, device)
            self._contribution(key, op, device)
        for op, value in itertools.product(self.graph.ops, self.graph.values):
            if value in op.outputs:
                for _, t, n, a, b, _ in self.flights.get((key, value, "activation"), []):
                    if t == device:
                        self.alive.append((t, n, a, max(b, self.last_use(key, value, t))))
                for s, _, n, _, b, _ in self.flights.get((key, value, "gradient"), []):
                    if s == device:
                        self.alive.append((s, n, self.first_gradient(key, value, s, False), b))
        for value in self.graph.inputs:
            starts = [
                self.runs[key, op.name, "F", device][0]
                for op in self.graph.ops
                if value in op.inputs and (key, op.name, "F", device) in self.runs
            ]
            if starts:
                end = self.last_use(key, value, device)
                self.alive.append((device, self.read(value, device), min(starts), end))

    def _contribution(self, key: Any, op: Op, device: int) -> None:
        """From the second micro-batch on, a weight gradient exists next to the sum that it is added to."""
        phase = "W" if self.plan.split_backward else "B"
        span = self.runs.get((key, op.name, phase, device))
        weights = [i for i in op.inputs if self.graph.values[i].role == "parameter"]
        if span is None or not key.micro_batch or not weights:
            return
        held = [
            sum(s.box.volume for s in self.program.regions[name] if device in s.devices)
            * self.program.element_bytes(name)
            for name in weights
        ]
        self.alive.append((device, max(held), *span))

    def read(self, value: str, device: int) -> int:
        """Bytes of a value that a device reads, element by element."""
        mask = np.zeros(self.graph.values[value].shape, bool)
        for op in self.graph.ops:
            for operand, name in enumerate(op.inputs):
                for tile in self.plan.tiles[op.name].tiles if name == value else ():
                    region = op.space.regions(tile.box)[operand]
                    if tile.device == device and region is not None:
                        mask[tuple(map(slice, *region))] = True
        return int(mask.sum()) * self.program.element_bytes(value)

    def _parts(self, key: Any, op: Op, device: int) -> None:
        value = op.outputs[0]
        used = [self.runs.get((key, op.name, "merge F", device), (-1, -1))[1]]
        if op.space.combine != "sum":
            used.append(self.runs.get((key, op.name, "merge B", device), (-1, -1))[1])
        for _, t, n, a, b, _ in self.flights.get((key, value, "partial"), []):
            if t == device:
                self.alive.append((t, n, a, max(b, *used)))
        if (key, op.name, "F", device) in self.runs:
            start, end = self.runs[key, op.name, "F", device]
            gone = [
                b for s, *_, b, _ in self.flights.get((key, value, "partial"), []) if s == device
            ]
            self.alive.append((device, self.part(op, device), start, max(end, *used, *gone)))

    def part(self, op: Op, device: int) -> int:
        width = self.program.element_bytes(op.outputs[0])
        return sum(
            op.space.output_boxes(t.box)[0].volume * tensors_per_part(op, t.box) * width
            for t in self.plan.tiles[op.name].tiles
            if t.device == device
        )

    def _outputs(self, key: Any, op: Op, device: int) -> None:
        phase = "merge F" if op.name in self.program.variants[0].merges else "F"
        if (key, op.name, phase, device) not in self.runs or self.is_view(key, op, device):
            return
        start = self.runs[key, op.name, phase, device][0]
        again = self.runs.get((key, op.name, "R", device))
        for value in op.outputs:
            size = self.output_bytes(op, value, device)
            self.alive.append((device, size, start, self.last_use(key, value, device)))
            if again is not None and op.name not in self.program.variants[0].merges:
                self.alive.append((device, size, again[0], self.last_use(key, value, device, 2)))
        planned = with_planned_dropout(self.plan, op, self.plan.tiles[op.name])
        extra = saved_for_backward(self.program.graph, self.program.active, planned).extra
        if extra:
            count = self.output_bytes(op, op.outputs[0], device) // self.program.element_bytes(
                op.outputs[0]
            )
            size = math.floor(extra * count)
            if again is not None:
                self.alive.append((device, size, start, self.runs[key, op.name, phase, device][1]))
                start = again[0]
            end = self.backward_end(key, op.name, device)
            self.alive.append((device, size, start, end))

    def output_bytes(self, op: Op, value: str, device: int) -> int:
        return sum(b.volume for b in self.boxes(op, value, device)) * self.program.element_bytes(
            value
        )

    def first_gradient(self, key: Any, value: str, device: int, arriving: bool) -> int:
        starts = [2**62]
        for op in self.graph.ops:
            if value in op.inputs and (key, op.name, "B", device) in self.runs:
                handed = op.kind in ("reshape", "permute") and self.is_view(key, op, device)
                starts.append(self.runs[key, op.name, "B", device][handed])
        if arriving:
            flights = self.flights.get((key, value, "gradient"), [])
            starts += [a for _, t, _, a, _, _ in flights if t == device]
        return min(starts)

    def _gradients(self, key: Any, op: Op, device: int) -> None:
        end = self.backward_end(key, op.name, device)
        if op.name in self.program.variants[0].merges:
            flights = self.flights.get((key, op.outputs[0], "partial gradient"), [])
            starts = [a for _, t, _, a, _, _ in flights if t == device]
            starts.append(self.runs.get((key, op.name, "merge B", device), (2**62, 0))[0])
            self.alive.append((device, self.part(op, device), min(starts), end))
            end = self.runs.get((key, op.name, "merge B", device), (-1, -1))[1]
            end = max([end, *(b for s, *_, b, _ in flights if s == device)])
        for value in op.outputs:
            if any(value in i.inputs for i in self.graph.ops) and value in self.program.active:
                begin = self.first_gradient(key, value, device, True)
                self.alive.append((device, self.output_bytes(op, value, device), begin, end))

    def _sharded(self, name: str, device: int) -> None:
        """ZeRO: gathers of a parameter on a device, its gradients, and the buffers of both."""
        element_bytes = self.program.element_bytes(name)
        read = {op.name for op in self.graph.ops if name in op.inputs}
        held = [s for s in self.program.regions[name] if device in s.devices]
        synced = [s for s in held if len(s.devices) > 1]
        shard = full = 0  # bytes in buffers
        for s in synced:
            rows, holders = (s.box.shape or (1,))[0], self._holders_in_a_group(s)
            part = math.ceil(rows / holders) * math.prod(s.box.shape[1:]) * element_bytes
            shard, full = shard + part, full + holders * part
        updates = {
            i.key.step: self._span(n, device) for n, i in enumerate(self.program.instructions)
            if isinstance(i, Update) and i.parameter == name
        }  # fmt: skip
        packed: dict[int, int] = {}  # by step, when the gradient is packed
        for number, i in enumerate(self.program.instructions):
            if not isinstance(i, Reduce | Gather) or name not in i.parameters or not synced:
                continue
            start, end = self._span(number, device)
            if isinstance(i, Reduce) and i.collective is Collective.ALL_REDUCE:
                continue  # over replicas, in the buffer of the reduce-scatter's sums
            if isinstance(i, Reduce):
                packed[i.key.step] = start
                self.alive.append((device, full, start, end))
                ends = [
                    self._span(n, device)[1] for n, u in enumerate(self.program.instructions)
                    if isinstance(u, Update) and u.parameter in i.parameters
                    and u.key.step == i.key.step
                ]  # fmt: skip
                self.alive.append((device, shard, start, max(ends)))  # the sums are one buffer
                continue
            runs = [(n, r) for n, r in self.waiting.get(number, []) if device in r.devices]
            unpacked = end
            if self.is_zero3:
                unpacked = max(
                    [end, *([min(self._span(n, device)[0] for n, _ in runs)] if runs else [])]
                )
                last = max([self._span(n, device)[1] for n, r in runs if r.op in read], default=0)
                nbytes = sum(s.box.volume for s in synced) * element_bytes
                self.alive.append((device, nbytes, unpacked, last))
            self.alive.append((device, full + shard, start, unpacked))
        for step, (_, updated) in updates.items():
            begins = [
                self._span(n, device)[0] for n, i in enumerate(self.program.instructions)
                if isinstance(i, Run) and i.phase in "BW" and i.op in read and device in i.devices
                and i.key.step == step
            ]  # fmt: skip
            if begins and held:
                nbytes = sum(s.box.volume for s in held) * element_bytes
                self.alive.append((device, nbytes, min(begins), packed.get(step, updated)))

    def _holders_in_a_group(self, region: ParameterRegion) -> int:
        """How many devices shard a region among them: those of a group, if its sync has groups."""
        text = self.plan.sync.partition("group=")[2]
        return min(int(text or len(region.devices)), len(region.devices))

    def _span(self, number: int, device: int) -> tuple[int, int]:
        """When a device executes an instruction; of a collective, its transfers there."""
        tasks, i = self.timeline.tasks, self.program.instructions[number]
        chosen = [
            t for t in self.tasks_of[number]
            if tasks.device[t] == device and (tasks.nbytes[t] or not isinstance(i, Reduce | Gather))
        ]  # fmt: skip
        starts, ends = self.timeline.start[chosen], self.timeline.end[chosen]
        return (int(starts.min()), int(ends.max())) if chosen else (2**62, -1)

    def _message_times(self, number: int, move: Move) -> list[tuple[int, int, int, int, int]]:
        """Source, target, bytes, start and end of each message."""
        return [
            (m.source, m.target, message_bytes(self.program, move, m),
             int(self.timeline.start[t]), int(self.timeline.end[t]))
            for m, t in zip(move.messages, self.tasks_of[number], strict=False)
        ]  # fmt: skip

    def persistent_bytes(self, device: int) -> int:
        optimizer_copies = {"sgd": 0, "momentum": 1, "adam": 2}[self.plan.optimizer]
        seen, total = set(), 0
        for i in self.program.instructions:
            if not isinstance(i, Update):
                continue
            for name in {*i.parameters} - seen:
                seen.add(name)
                element_bytes = self.program.element_bytes(name)
                for s in self.program.slices.get(name, i.regions):
                    if self.is_sharded:
                        if device in s.devices:
                            rows, count = (s.box.shape or (1,))[0], self._holders_in_a_group(s)
                            place, size = s.devices.index(device) % count, math.ceil(rows / count)
                            shard_rows = max(0, min(size, rows - place * size))
                            shard_bytes = shard_rows * math.prod(s.box.shape[1:]) * element_bytes
                            whole = shard_bytes if self.is_zero3 else s.box.volume * element_bytes
                            total += whole + optimizer_copies * shard_bytes
                    elif device in (*s.devices, s.server):
                        state = optimizer_copies if s.server in (-1, device) else 0
                        total += s.box.volume * element_bytes * (2 + state)
        for v in self.graph.values.values():
            if v.role in ("buffer", "constant", "frozen", "parameter") and v.name not in seen:
                total += self.read(v.name, device)
        return total


def check_against_replay(program: Program, machine: str) -> None:
    timeline = simulate(program, cluster_named(machine))
    replay = Replay(timeline)
    peaks = peak_bytes(timeline)
    for device in range(program.plan.devices):
        entries = [e[1:] for e in replay.alive if e[0] == device and e[2] < e[3]]
        always = replay.persistent_bytes(device)
        change: dict[int, int] = {0: 0}
        for nbytes, begin, end in entries:
            change[begin] = change.get(begin, 0) + nbytes
            change[end] = change.get(end, 0) - nbytes
        times = sorted(change)
        levels = [always + s for s in itertools.accumulate(change[t] for t in times)]
        curve_times, curve = memory_curve(timeline, device)
        at = np.searchsorted(curve_times, times, "right") - 1
        assert curve[at].tolist() == levels
        assert set(curve_times.tolist()) <= set(times)
        assert peaks[device] == max(levels)


@settings(max_examples=30)
@given(
    model=st.sampled_from(MODELS),
    devices=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    sync=st.sampled_from(
        [
            "allreduce",
            "server",
            "sharded",
            "sharded:parameters",
            "sharded,group=2",
            "sharded:parameters,group=2",
            "ps:one",
            "ps:greedy,slice=9",
            "p3:slice=7",
            "p3:collective,slice=7",
        ]
    ),
    optimizer=st.sampled_from(["sgd", "momentum", "adam"]),
    microbatches=st.integers(1, 2),
)
def test_equals_a_replay(model: str, devices: int, seed: int, **more: Any) -> None:
    graph = small(model)[1]
    check_against_replay(lower(graph, random_plan(graph, devices, seed, **more)), "p100:1x4")


@settings(max_examples=10)
@given(
    devices=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    dropout=st.sampled_from(DROPOUT_KINDS),
    microbatches=st.integers(1, 2),
)
def test_attention_with_dropout_equals_a_replay(devices: int, seed: int, **more: Any) -> None:
    graph = gpt_with_dropout()
    check_against_replay(lower(graph, random_plan(graph, devices, seed, **more)), "p100:1x4")


@cache
def gpt_with_dropout() -> Graph:
    work = zoo.load("gpt-tiny", device="cpu", dtype=torch.float64)
    return capture(work.model.train(), work.batch, work.loss)


def test_native_dropout_of_attention_saves_no_weights() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            x = x * self.scale
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    x = torch.rand(2, 3, 64, 8)  # samples, heads, queries and keys, features
    graph = capture(Attention(), (x,), supervised(lambda y: y.sum(), targets=0))
    extra: dict[str, float] = {}
    for dropout in DROPOUT_KINDS:
        plan = make_plan(graph, {}, 1, dropout=dropout)
        program = lower(graph, plan)
        op = with_planned_dropout(plan, graph.op("attention"), plan.tiles["attention"])
        saved = saved_for_backward(graph, program.active, op)
        assert (op.inputs[0] in saved.inputs, saved.output) == (True, True)
        extra[dropout] = float(saved.extra * x.numel())
    # a logarithm for each query; or two float32 weights and a boolean for each pair of query and key
    assert extra == {"native": 2 * 3 * 64 * 4, "exact": 2 * 3 * 64 * 64 * (4 + 4 + 1)}


# -- against what PyTorch saves -------------------------------------------------------------------

RULES: dict[
    str, tuple[Callable[..., Tensor], int]
] = {  # a function, and how many operands of shape [2 4 6 6] it has
    "conv2d": (lambda x: F.conv2d(x, torch.ones(4, 4, 3, 3)), 1),
    "linear": (lambda x: F.linear(x, torch.ones(3, 6)), 1),
    "relu": (torch.relu, 1),
    "sigmoid": (torch.sigmoid, 1),
    "tanh": (torch.tanh, 1),
    "exp": (torch.exp, 1),
    "sqrt": (lambda x: torch.sqrt(x), 1),
    "gelu": (F.gelu, 1),
    "silu": (F.silu, 1),
    "softplus": (F.softplus, 1),
    "add": (torch.add, 2),
    "sub": (torch.sub, 2),
    "mul": (torch.mul, 2),
    "div": (torch.div, 2),
    "matmul": (torch.matmul, 2),
    "cat": (lambda x, y: torch.cat([x, y]), 2),
    "reshape": (lambda x: x.reshape(2, 4, 36), 1),
    "permute": (lambda x: x.permute(0, 1, 3, 2), 1),
    "slice": (lambda x: x[:, 1:3], 1),
    "select": (lambda x: x[:, 1], 1),
    "pad": (lambda x: F.pad(x, (1, 1)), 1),
    "sum": (lambda x: x.sum(1), 1),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), 1),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), 1),
}


@pytest.mark.parametrize("label", RULES)
def test_saves_what_pytorch_saves(label: str) -> None:
    function, count = RULES[label]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.Parameter(torch.rand(count, 1) + 0.5)

        def forward(self, x: Tensor) -> Tensor:
            return function(*(x * s for s in self.scales))

    x = torch.rand(2, 4, 6, 6)
    graph = capture(Model(), (x,), supervised(lambda y: y.sum(), targets=0))
    program = lower(graph, make_plan(graph, {}, 1))
    op = next(op for op in graph.ops if label in (op.label, op.kind) and "mul" in op.inputs[0])
    rule = saved_for_backward(program.graph, program.active, op)

    inputs = [(x * (1 + i)).requires_grad_() * 1 for i in range(count)]
    held: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        output = function(*inputs)
    pointers = {t.data_ptr() for t in held}
    kept_inputs = [t.data_ptr() in pointers for t in inputs]
    assert [name in rule.inputs for name in op.inputs[:count]] == kept_inputs
    assert rule.output == (output.data_ptr() in pointers and not any(kept_inputs))
    beside = [t for t in held if t.dtype == torch.int64]
    assert rule.extra == (8 if beside else 0)


@pytest.mark.parametrize("name", ["lenet-tiny", "vgg16-tiny", "resnet50-tiny", "gpt-tiny"])
def test_activations_are_what_pytorch_saves(name: str) -> None:
    """Between forward and backward, only what autograd has saved is alive."""
    work = zoo.load(name, batch=16, device="cpu")
    model = work.model.train()
    if name == "gpt-tiny":  # on a CPU, PyTorch has no fused attention with dropout
        for module in model.modules():
            for probability in ("p", "dropout"):
                if isinstance(getattr(module, probability, None), float):
                    setattr(module, probability, 0.0)
    graph = capture(model, work.batch, work.loss)
    timeline = simulate(lower(graph, make_plan(graph, {}, 1)), cluster("p100:1x1"))
    last = next(op.name for op in reversed(graph.ops) if graph.loss in op.outputs)
    predicted = level(timeline, 0, last, "B") - memory_curve(timeline, 0)[1][-1]

    always = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    saved: dict[int, Tensor] = {}

    def pack(t: Tensor) -> Tensor:
        saved[t.untyped_storage().data_ptr()] = (
            t  # the reference keeps its address from being reused
        )
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        work.loss(model, work.batch)
    real = sum(t.untyped_storage().nbytes() for p, t in saved.items() if p not in always)
    assert predicted == pytest.approx(real, rel=0.03)
