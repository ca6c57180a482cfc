"""Measures the blocks of a model as the executor runs them: segments, forward and backward, on one device.

A trainer trains the model with everything on one device. Each step is divided where a segment's forward or
backward ends. On a CPU these are times of the host's clock. On a GPU they are times of CUDA events, while
the host is ahead: before a step, the GPU gets other work that lasts until the host has launched much of the
step, so that no block waits for the host. What the host itself needs is measured with a small batch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from raddle.clusters import Device
from raddle.costs.compute import ComputeCosts
from raddle.costs.measured_blocks import MeasuredBlock, MeasuredBlocks, device_numbers, fit_block
from raddle.errors import InputError
from raddle.graph.arguments import map_samples
from raddle.graph.graph import Graph
from raddle.graph.supervised import Loss
from raddle.plans.optimizers import optimizer_info
from raddle.plans.plan import Plan
from raddle.plans.tiling import whole_tiling
from raddle.program.program import Program, Update, update_bytes
from raddle.runtime.actions import Action, Backward, Forward
from raddle.runtime.trainer import Trainer, parallelize

WARMUP = 3  # steps that are not measured
LEAST_ROUNDS, MOST_ROUNDS, SECONDS = 3, 9, 1.0  # steps whose median counts, and how long they take
SMALL_PART = 8  # the small batch is this part of the batch
LEARNING_RATE = 1e-4  # small, so that random data does not make the parameters infinite
PLUG_SIDE = 4096  # of the matrices whose product keeps a GPU busy while the host gets ahead

BlockKey = tuple[str, tuple[str, ...]]  # phase, names of the operators


class StepTimes(NamedTuple):
    """Seconds of the parts of a step, medians over several steps."""

    blocks: Mapping[BlockKey, float]
    update: float  # from the end of the last backward to the end of the step
    host: float  # the host's, to launch all of a step; on a CPU: of the step
    step: float  # of a step, when one follows the other


def single_device_plan(graph: Graph, precision: str, optimizer: str) -> Plan:
    """Returns the plan that computes everything on one device."""
    tiles = {op.name: whole_tiling([d.size for d in op.space.dims], (0,)) for op in graph.ops}
    return Plan(
        tiles, devices=1, bn="local", precision=precision, optimizer=optimizer, model=graph.name,
        batch=graph.batch,
    )  # fmt: skip


def make_trainer(
    graph: Graph,
    model: nn.Module,
    loss: Loss | None,
    plan: Plan,
    *,
    compile: bool,
    place: torch.device,
) -> Trainer:
    """Returns a trainer of a plan for one device. compile: whether segments go through torch.compile."""
    make = optimizer_info(plan.optimizer).make
    return parallelize(
        model, lambda pairs: make(pairs, lr=LEARNING_RATE), plan=plan, graph=graph, loss=loss,
        device=place, compile=compile,
    )  # fmt: skip


def measure_blocks(
    trainer: Trainer,
    batch: Any,
    device: Device,
    *,
    small: bool = True,
    on_progress: Callable[[Mapping[str, Any]], None] = lambda step: None,
) -> MeasuredBlocks:
    """Measures the blocks of a trainer's model on its device; returns them for a profile.

    batch: of the planned size. device: the cluster's description of this device; times of other sizes are
    predicted by its roofline. small: whether to measure also with a small part of the batch, which divides
    the times into what grows with the batch and what does not.
    """
    graph, compiled = trainer.graph, trainer.setup.functions.mode is not None
    device = replace(device, compile=compiled)
    sizes = [graph.batch, small_batch(graph)] if small else [graph.batch]
    times, programs = [], []
    for done, size in enumerate(dict.fromkeys(sizes)):
        on_progress({"step": f"batch {size}", "done": done, "of": len(sizes)})
        times.append(step_times(trainer, part_of(batch, graph.batch, size), size))
        programs.append(trainer.step_runner.executor_for(size).program)
    floor = 0.0
    if trainer.place.type != "cpu":
        floor = max(0.0, times[-1].host - times[0].update)
    if times[-1].blocks.keys() != times[0].blocks.keys():  # the small batch runs in other segments
        times, programs = times[:1], programs[:1]
    works = [_works(program, times[0].blocks, device) for program in programs]
    blocks = _fit(times, works, floor)
    costs = ComputeCosts(programs[0].graph, programs[0].active, bn="local")
    return MeasuredBlocks(
        device=device_numbers(device),
        model=graph.name,
        batch=graph.batch,
        precision=trainer.plan.precision,
        compiled=compiled,
        update_bandwidth=_updated_bytes(programs[0]) / max(1e-9, times[0].update),
        blocks=tuple(blocks),
        operators={op.name: costs.identity(op) for op in programs[0].graph.ops},
    )


def small_batch(graph: Graph) -> int:
    """Returns the batch at which blocks are measured besides that of the graph; the same if there is none.

    It has at least two samples, because many modules have other operators for one. A user's function may
    not allow another batch than its own.
    """
    size = min(graph.batch, max(2, graph.batch // SMALL_PART))
    try:
        return graph.for_batch(size).batch
    except InputError:
        return graph.batch


def part_of(batch: Any, samples: int, count: int) -> Any:
    """Returns the first `count` samples of a batch with `samples` samples."""
    return map_samples(lambda t: t[:count] if t.shape[0] == samples else t, batch)


def step_times(trainer: Trainer, batch: Any, samples: int) -> StepTimes:
    """Measures the steps of a trainer on a batch with so many samples."""
    start = _now(trainer)
    for _ in range(WARMUP):
        start = _now(trainer)
        trainer.step(batch)
    count = int(SECONDS / max(1e-9, _now(trainer) - start))
    count = max(LEAST_ROUNDS, min(MOST_ROUNDS, count))
    host = statistics.median(_host_seconds(trainer, batch) for _ in range(count))
    start = _now(trainer)
    for _ in range(count):
        trainer.step(batch)
    step = (_now(trainer) - start) / count
    rounds = [_divided_step(trainer, batch, samples, host) for _ in range(count)]
    keys = rounds[0][0].keys()
    return StepTimes(
        {key: statistics.median(blocks[key] for blocks, _ in rounds) for key in keys},
        statistics.median(update for _, update in rounds),
        min(host, step),
        step,
    )


def _now(trainer: Trainer) -> float:
    """Returns the time at which the device has finished all work."""
    if trainer.place.type == "cuda":
        torch.cuda.synchronize(trainer.place)
    return time.perf_counter()


def _host_seconds(trainer: Trainer, batch: Any) -> float:
    """Returns the seconds in which the host launches a step, on a device that has nothing else to do."""
    start = _now(trainer)
    trainer.step(batch)
    return time.perf_counter() - start


def _divided_step(
    trainer: Trainer, batch: Any, samples: int, host: float
) -> tuple[dict[BlockKey, float], float]:
    """Runs a step; returns the seconds of each block, and those of what follows the last one."""
    executor, on_gpu = trainer.step_runner.executor_for(samples), trainer.place.type == "cuda"
    keys: list[BlockKey] = []
    marks: list[Any] = []

    def mark() -> None:
        if on_gpu:
            marks.append(_event())
            marks[-1].record()
        else:
            marks.append(time.perf_counter())

    def note(action: Action, start: float, end: float) -> None:
        if isinstance(action, Forward | Backward):
            keys.append(("F" if isinstance(action, Forward) else "B", action.call.operators))
            mark()

    _now(trainer)
    if on_gpu:
        _plug(trainer.place, host)
    mark()
    executor.record = note
    try:
        trainer.step(batch)
    finally:
        executor.record = None
    mark()
    _now(trainer)
    seconds = [1e-3 * a.elapsed_time(b) if on_gpu else b - a for a, b in pairwise(marks)]
    return dict(zip(keys, seconds, strict=False)), seconds[-1]


def _event() -> Any:
    """Returns a CUDA event that notes the time at which the GPU reaches it."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


_plug_seconds: dict[torch.device, float] = {}  # by GPU, the seconds of one product


def _plug(place: torch.device, seconds: float) -> None:
    """Gives a GPU work for so many seconds, without waiting for it."""
    x = torch.zeros(PLUG_SIDE, PLUG_SIDE, device=place)
    if place not in _plug_seconds:
        x @ x
        start, end = _event(), _event()
        start.record()
        x @ x
        end.record()
        torch.cuda.synchronize(place)
        _plug_seconds[place] = max(1e-5, 1e-3 * start.elapsed_time(end))
    for _ in range(1 + int(seconds / _plug_seconds[place])):
        x @ x


def _works(
    program: Program, keys: Mapping[BlockKey, float], device: Device
) -> dict[BlockKey, dict[str, float]]:
    """Returns by block the roofline seconds, without overheads, of each of its operators."""
    graph = program.graph
    costs = ComputeCosts(graph, program.active, bn="local")
    ops = {op.name: op for op in graph.ops}
    return {
        (phase, names): {
            name: costs.work_seconds(ops[name], ops[name].space.full, phase, device)
            for name in names
        }
        for phase, names in keys
    }


def _updated_bytes(program: Program) -> int:
    """Returns the bytes that the updates of a step read and write."""
    return max(1, sum(
        update_bytes(program.plan, program.graph, update.parameter)
        * sum(program.updated_elements(region) for region in update.regions)
        for update in program.instructions if isinstance(update, Update)
    ))  # fmt: skip


def _fit(
    times: Sequence[StepTimes],
    works: Sequence[Mapping[BlockKey, Mapping[str, float]]],
    floor: float,
) -> list[MeasuredBlock]:
    """Returns the measured blocks. floor: the host's seconds of all of them together.

    Each block has a share of the floor as it has of the time. So blocks of which the host launches some
    slower than the GPU computes them, and others faster, take the larger sum.
    """
    total = sum(times[0].blocks.values())
    return [
        fit_block(
            key[0],
            [
                (sum(work[key].values()), at.blocks[key])
                for at, work in zip(times, works, strict=True)
            ],
            works[0][key],
            floor * seconds / total,
        )
        for key, seconds in times[0].blocks.items()
    ]
