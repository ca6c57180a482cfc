"""Tells which devices of a pipeline plan run which stage of which micro-batch; checks stages and workers.

A *worker* is a row of the schedule, with its devices. The tiles of a plan place each stage on the devices
of one worker. If the schedule runs the stage on another worker too, that worker has a replica of the stage:
its first device has the same tiles as the first device of the planned worker, and so on. In this way a plan
describes mirrored pairs (GEMS, Chimera), replicated stages, and several pipelines next to each other.

A `threaded` plan has no stages: several steps run at once (program/threaded_order.py).
"""

# s: stage, m: micro-batch, w: worker, d: device

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from raddle.errors import InputError, quote, shorten
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.schedule import Schedule, schedule_from_text
from raddle.plans.schedules import ASYNCHRONOUS, NAMES, SCHEDULES, named_schedule
from raddle.plans.tiling import Grid, Irregular, Tile, Tiling

THREADED = "threaded"
SEQUENTIAL = "sequential"  # the schedule, if a plan has stages but names none
OVERLAPPED_STEPS = (
    32  # if steps overlap: how many steps the program of a run has (`plan_for_running`)
)


def micro_batch_sizes(plan: Plan, graph: Graph) -> list[int]:
    """Returns the samples of each micro-batch; the last ones may have one less.

    graph: the graph of the largest micro-batch.
    """
    missing_samples = graph.batch * plan.microbatches - plan.batch
    short = missing_samples if 0 < missing_samples < plan.microbatches else 0
    full = plan.microbatches - short
    return [graph.batch] * full + [graph.batch - 1] * short


def micro_batch_graph(graph: Graph, plan: Plan | Mapping[str, Any]) -> Graph:
    """Returns the graph of a plan's largest micro-batch.

    graph: either this graph or that of the whole batch. plan: a plan, or the data of a plan file.
    """
    fields = plan if isinstance(plan, Mapping) else vars(plan)
    batch, count = fields["batch"], fields["microbatches"]
    is_whole_batch = (
        count > 1 and graph.batch == batch and fields["fingerprint"] != graph.fingerprint()
    )
    return graph.for_batch(-(-batch // count)) if is_whole_batch else graph


def is_asynchronous(plan: Plan) -> bool:
    """Returns whether steps overlap: a step begins before the one before it has updated all parameters."""
    return plan.schedule in ASYNCHRONOUS or is_threaded(plan)


def without_pipeline(plan: Plan) -> Plan:
    """Returns the same plan without stages; batch norm over a micro-batch becomes that over the batch."""
    bn = "global" if plan.bn == "microbatch" else plan.bn
    return replace(plan, stages=(), schedule="", workers=(), bn=bn)


def is_schedule(text: str) -> bool:
    """Returns whether a text is the name of a schedule, or rows of actions that can be read."""
    if text in NAMES:
        return True
    try:
        return bool(schedule_from_text(text).microbatches)
    except InputError:
        return False


def schedule_splits_backward(schedule: str) -> bool:
    """Returns whether a schedule, a name or rows of text, has W actions for the gradients of parameters."""
    if schedule in NAMES:
        return SCHEDULES[schedule].splits_backward
    return bool(schedule) and schedule_from_text(schedule).split


def plan_for_running(plan: Plan) -> Plan:
    """Returns the plan with the number of steps that a run's program has: one or, if steps overlap, many.

    A training that needs more steps runs this program again and again.
    """
    return replace(plan, steps=max(plan.steps, OVERLAPPED_STEPS) if is_asynchronous(plan) else 1)


def is_threaded(plan: Plan) -> bool:
    """Returns whether a plan without stages runs several steps at once (program/threaded_order.py)."""
    return plan.schedule.split(":")[0] == THREADED


def steps_in_flight(plan: Plan) -> int:
    """Returns how many steps a threaded plan runs at once."""
    words = plan.schedule.split(":")
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 2


def workers_of(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Returns the devices of each worker. If the plan names none, the devices of each stage are a worker.

    Stages on the same devices have one worker; workers are in the order of their first stages.
    """
    if plan.workers:
        return plan.workers
    devices = [stage_devices(plan, s) for s in range(len(plan.stages))]
    return tuple(dict.fromkeys(devices))


def stage_devices(plan: Plan, s: int) -> tuple[int, ...]:
    """Returns the devices of the tiles of stage s, in ascending order."""
    return tuple(sorted({d for name in plan.stages[s] for d in plan.tiles[name].devices}))


def schedule_of(plan: Plan) -> Schedule:
    """Returns the schedule of one step or, if steps overlap, of all steps of the plan."""
    count = plan.microbatches
    stages, rows = len(plan.stages), len(workers_of(plan))
    if plan.schedule in ASYNCHRONOUS:
        return named_schedule(plan.schedule, stages, rows, count * plan.steps, per_step=count)
    if plan.schedule in NAMES or not plan.schedule:
        return named_schedule(plan.schedule or SEQUENTIAL, stages, rows, count)
    schedule = schedule_from_text(plan.schedule)
    if len(schedule.rows) != rows or schedule.stages != stages or schedule.microbatches != count:
        raise InputError(
            f"the schedule has {len(schedule.rows)} rows for {schedule.stages} stages of "
            f"{schedule.microbatches} micro-batches, but the plan has {rows} workers, {stages} stages and "
            f"{count} micro-batches."
        )
    return schedule


def stage_of(plan: Plan) -> dict[str, int]:
    """Returns the stage of each operator, by name; empty without stages."""
    return {name: s for s, names in enumerate(plan.stages) for name in names}


def validate_stages(plan: Plan, graph: Graph) -> None:
    """Raises InputError unless the stages form a pipeline, and the schedule and workers fit them."""
    if not plan.schedule and not plan.stages:
        return
    if is_asynchronous(plan) and not plan.parsed_sync.allows_overlap:
        raise InputError(
            f"the schedule {quote(plan.schedule)} updates parameters on all holders: use sync allreduce, "
            f"not {quote(plan.sync)}."
        )
    if is_threaded(plan):
        _validate_threaded(plan)
        return
    if plan.schedule and not plan.stages:
        raise InputError(
            f"the schedule is '{_first_line(plan.schedule)}', but the plan has no stages."
        )
    stages = stage_of(plan)
    names = {op.name for op in graph.ops}
    for name in stages:
        if name not in names:
            raise InputError(f"a stage has {quote(name)}, which '{graph.name}' does not have.")
    if sum(map(len, plan.stages)) > len(stages):
        raise InputError("an operator is in two stages: keep it in one of them.")
    producers = {o: op.name for op in graph.ops for o in op.outputs}
    for op in graph.ops:
        if op.name not in stages:
            raise InputError(f"'{op.name}' is in no stage.")
        for name in op.inputs:
            if name in producers and stages[producers[name]] > stages[op.name]:
                raise InputError(
                    f"'{op.name}' of stage {stages[op.name]} reads '{name}', which stage "
                    f"{stages[producers[name]]} computes: an operator may read only from its own stage and "
                    "earlier ones."
                )
    _validate_workers(plan)
    _validate_sums_of_stages(plan, stages)
    _validate_buffers(plan, graph, stages)


def _validate_sums_of_stages(plan: Plan, stages: Mapping[str, int]) -> None:
    """Raises InputError unless `plan.sums` sums partial results of a stage on devices of its worker.

    A replica of the stage moves the sums with its tiles, device by device, to the devices of its worker.
    """
    workers, planned = workers_of(plan), planned_workers(plan) if plan.sums else []
    for name, tiling in plan.sums.items():
        worker = workers[planned[stages[name]]]
        if not set(tiling.devices) <= set(worker):
            raise InputError(
                f"'{name}' of stage {stages[name]} is summed on devices {sorted(set(tiling.devices))}, but "
                f"its worker has {list(worker)}."
            )


def _validate_buffers(plan: Plan, graph: Graph, stages: Mapping[str, int]) -> None:
    """Raises InputError if a micro-batch cannot read what the one before it has written to a buffer.

    A buffer is, for example, a running mean. It cannot be read if another stage writes it, which may be too
    late, or if a replica of the stage writes it on other devices.
    """
    if plan.microbatches == 1 and not is_asynchronous(plan):
        return
    producers = {o: op.name for op in graph.ops for o in op.outputs}
    schedule = schedule_of(plan)
    declared = SCHEDULES.get(plan.schedule or SEQUENTIAL)
    serial = declared is not None and declared.serial
    # The micro-batches of one step: if steps overlap, the schedule has those of all steps.
    micro_batches = range(min(schedule.microbatches, plan.microbatches))
    replicas = len({workers_of_micro_batch(plan, schedule, m) for m in micro_batches}) > 1
    for buffer, value in graph.updates.items():  # value: what the buffer contains next
        for op in graph.readers.get(buffer, ()):
            too_late = stages[op.name] != stages[producers[value]] and not serial
            elsewhere = replicas and value not in op.outputs
            if too_late or elsewhere:
                raise InputError(
                    f"'{op.name}' of stage {stages[op.name]} reads buffer '{buffer}', which stage "
                    f"{stages[producers[value]]} writes for the next micro-batch"
                    f"{', on other devices' if elsewhere else ''}: put both into one stage, or use "
                    "--schedule sequential."
                )


def _validate_threaded(plan: Plan) -> None:
    if plan.stages or not re.fullmatch(rf"{THREADED}(:[1-9]\d{{0,3}})?(:greedy)?", plan.schedule):
        raise InputError(
            f"the schedule is '{_first_line(plan.schedule)}': write threaded:4 for four steps at once "
            "(threaded:4:greedy to let each device choose what is next), without stages."
        )


def is_greedy(plan: Plan) -> bool:
    """Returns whether a device of a threaded plan chooses at run time which ready instruction is next."""
    return is_threaded(plan) and plan.schedule.endswith(":greedy")


def steps_to_simulate(plan: Plan, default: int) -> int:
    """Returns how many steps to simulate: `default` or, if steps overlap, enough for a steady state."""
    if not is_asynchronous(plan):
        return default
    # Six times the steps that are in flight at once.
    return 6 * max(steps_in_flight(plan) if is_threaded(plan) else len(plan.stages), 1)


def _validate_workers(plan: Plan) -> None:
    """Raises InputError if a device belongs to two workers, or a worker does not fit its stages."""
    workers = workers_of(plan)
    worker_of: dict[int, int] = {}  # by device, the first worker that has it
    for w, devices in enumerate(workers):
        for d in devices:
            if not 0 <= d < plan.devices:
                raise InputError(
                    f"worker {w} has device {d}, but the plan has devices 0 to {plan.devices - 1}."
                )
            if worker_of.setdefault(d, w) != w:
                raise InputError(
                    f"device {d} belongs to workers {worker_of[d]} and {w}, but may belong to one: take it "
                    "out of one of them, or list one worker with the devices of both."
                )
    planned_workers(plan)  # raises InputError if a stage has none
    schedule = schedule_of(plan)
    if schedule.split and not plan.split_backward:
        raise InputError(
            f"the schedule '{_first_line(plan.schedule)}' splits the backward: set split_backward."
        )
    for m in range(min(schedule.microbatches, plan.microbatches)):
        workers_of_micro_batch(plan, schedule, m)  # raises InputError if a worker does not fit


def planned_workers(plan: Plan) -> list[int]:
    """Returns, by stage, the worker on whose devices the plan's tiles place it."""
    worker_devices = [set(devices) for devices in workers_of(plan)]
    workers = []
    for s in range(len(plan.stages)):
        devices = set(stage_devices(plan, s))
        w = next((w for w, others in enumerate(worker_devices) if devices <= others), None)
        if w is None:
            raise InputError(
                f"stage {s} is on devices {sorted(devices)}, which no worker has together."
            )
        workers.append(w)
    return workers


def workers_of_micro_batch(plan: Plan, schedule: Schedule, m: int) -> tuple[int, ...]:
    """Returns, for each stage, the worker that runs micro-batch m.

    Raises InputError if such a worker has more or fewer devices than the stage.
    """
    stage_workers = tuple(schedule.worker(s, m) for s in range(len(plan.stages)))
    workers, planned = workers_of(plan), planned_workers(plan)
    for s, w in enumerate(stage_workers):
        planned_devices = workers[planned[s]]
        if len(workers[w]) != len(planned_devices):
            raise InputError(
                f"stage {s} has {len(planned_devices)} devices, but worker {w}, which runs micro-batch "
                f"{m} of it, has {len(workers[w])}."
            )
    return stage_workers


def move_tiles(
    plan: Plan, stage_workers: Sequence[int], tiles: Mapping[str, Tiling]
) -> dict[str, Tiling]:
    """Moves tiles to the workers that run each stage (`stage_workers`), device by device."""
    workers, planned, stages = workers_of(plan), planned_workers(plan), stage_of(plan)
    moves = []  # by stage, planned device -> device of the worker; empty: stay
    for s, w in enumerate(stage_workers):
        planned_devices = workers[planned[s]]
        moves.append(
            {}
            if workers[w] == planned_devices
            else dict(zip(planned_devices, workers[w], strict=True))
        )
    return {name: _move_tiling(tiling, moves[stages[name]]) for name, tiling in tiles.items()}


def _move_tiling(tiling: Tiling, new_device: Mapping[int, int]) -> Tiling:
    if not new_device:
        return tiling
    if isinstance(tiling, Grid):
        return replace(tiling, devices=tuple(new_device[d] for d in tiling.devices))
    return Irregular(tuple(Tile(t.box, new_device[t.device]) for t in tiling.tiles))


def cut_stages(graph: Graph, ends: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Cuts a graph into stages, after each operator in `ends`; returns the operators' names by stage."""
    names = [op.name for op in graph.ops]
    unknown = [name for name in ends if name not in names]
    if unknown:
        raise InputError(f"'{graph.name}' has no operator '{unknown[0]}' to cut after.")
    points = [0, *sorted(names.index(name) + 1 for name in ends), len(names)]
    return tuple(tuple(names[a:b]) for a, b in pairwise(points) if a < b)


def _first_line(text: str) -> str:
    """Returns the first line of a schedule, shortened for an error message."""
    return shorten(text.splitlines()[0]) if text.strip() else text
