"""Random modules with random stages and random schedules train as the plain module does, or are refused.

Stages follow the order of the graph, but need not be contiguous. Workers have one to three devices with
random tiles. Schedules are named ones, or written action by action, with replicas and waits.
"""

# s: stage, m: micro-batch, w: worker

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from equality import Mismatch
from hypothesis import Phase, event, given, note, reject, settings
from hypothesis import strategies as st
from pipeline_plans import PipelineTask, updates_of
from random_modules import random_case
from random_plans import (
    random_blocks,
    random_sums,
    random_sync,
    random_tiling,
    with_legal_group,
)
from test_random_graphs import scattered_blocks, written

from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.pipelining import _move_tiling, stage_of
from raddle.plans.plan import Plan
from raddle.plans.schedule import Action, Schedule, schedule_to_text
from raddle.plans.schedules import ASYNCHRONOUS, MAKERS
from raddle.plans.tiling import Tiling
from raddle.program.lower import lower

STEPS = 2
NAMED = tuple(name for name in MAKERS if name not in ASYNCHRONOUS)

Stages = tuple[tuple[str, ...], ...]


def random_stages(graph: Graph, count: int, rng: random.Random) -> Stages:
    """At most `count` stages; no operator is in an earlier stage than the values that it reads."""
    stage_by_value: dict[str, int] = {}
    stages: list[list[str]] = [[] for _ in range(count)]
    contiguous = rng.random() < 0.5
    last = 0
    for i, op in enumerate(graph.ops):
        low = max([stage_by_value.get(name, 0) for name in op.inputs], default=0)
        if contiguous:
            last = max(last, min(count - 1, i * count // len(graph.ops) + rng.randint(0, 1)))
            s = last
        else:
            s = low if rng.random() < 0.7 else rng.randint(low, count - 1)
        stages[s].append(op.name)
        stage_by_value.update((o, s) for o in op.outputs)
    return tuple(tuple(names) for names in stages if names)


def random_schedule(
    stages: int, microbatches: int, able: Sequence[Sequence[int]], rng: random.Random
) -> Schedule:
    """A random schedule in a valid order. able: for each stage, the workers that can run it."""
    phases = "FBW" if rng.random() < 0.3 else "FB"
    fixed = rng.random() < 0.5
    worker = {
        (s, m): able[s][0] if fixed else rng.choice(able[s])
        for s in range(stages)
        for m in range(microbatches)
    }
    count = 1 + max(w for workers in able for w in workers)
    rows: list[list[Action]] = [[] for _ in range(count)]
    done: list[Action] = []
    remaining = [
        Action(p, s, m) for p in phases for s in range(stages) for m in range(microbatches)
    ]
    eager = rng.choice([0.2, 0.5, 0.8])
    while remaining:
        ready = [a for a in remaining if _is_ready(a, stages, done)]
        backward = [a for a in ready if a.phase != "F"]
        action = rng.choice(backward if backward and rng.random() < eager else ready)
        rows[worker[action.stage, action.micro_batch]].append(action)
        done.append(action)
        remaining.remove(action)
    waits = []
    for _ in range(rng.choice([0, 0, 1, 3])):
        a, b = sorted(rng.sample(range(len(done)), 2))
        waits.append((done[b], done[a]))
    return Schedule(tuple(map(tuple, rows)), tuple(dict.fromkeys(waits)))


def _is_ready(action: Action, stages: int, done: Sequence[Action]) -> bool:
    phase, s, m = action
    if phase == "F":
        return s == 0 or Action("F", s - 1, m) in done
    if phase == "W":
        return Action("B", s, m) in done
    return Action("F", s, m) in done and (s + 1 == stages or Action("B", s + 1, m) in done)


def some_plan(graph: Graph, rng: random.Random) -> Plan:
    """A random pipeline plan; it may be invalid."""
    stages = random_stages(graph, rng.randint(2, 4), rng)
    count, microbatches = len(stages), rng.choice([1, 2, 2, 3, 4, 5])
    kind = rng.choice(["named", "named", "interleaved", "text", "text"])
    rows = rng.randint(1, count) if kind != "named" else count
    widths = [rng.choice([1, 1, 2, 3])] * rows
    if rng.random() < 0.4:
        widths = [rng.choice([1, 1, 2, 3]) for _ in range(rows)]
    starts = [sum(widths[:w]) for w in range(rows)]
    workers = [tuple(range(a, a + k)) for a, k in zip(starts, widths, strict=True)]
    worker_of = [s % rows if kind != "text" else rng.randrange(rows) for s in range(count)]
    if kind == "text":
        able = [
            [worker_of[s]] + [w for w in range(rows) if widths[w] == widths[worker_of[s]]]
            for s in range(count)
        ]
        random_rows = random_schedule(count, microbatches, able, rng)
        schedule, is_split = schedule_to_text(random_rows), random_rows.split
        workers = workers[: len(random_rows.rows)]
    else:
        schedule = "interleaved" if kind == "interleaved" else rng.choice(NAMED)
        is_split = schedule.startswith("zb")
    devices = sum(map(len, workers))
    tiles: dict[str, Tiling] = {}
    for s, names in enumerate(stages):
        worker_devices = workers[worker_of[s]]
        for name in names:
            tiling = random_tiling(graph.op(name), len(worker_devices), rng)
            tiles[name] = _move_tiling(tiling, dict(enumerate(worker_devices)))
    sums: dict[str, Tiling] = {}
    if rng.random() < 0.3:
        for s, names in enumerate(stages):
            worker_devices = workers[worker_of[s]]
            chosen_sums = random_sums(graph, tiles, len(worker_devices), rng)
            sums |= {
                n: _move_tiling(chosen_sums[n], dict(enumerate(worker_devices)))
                for n in names
                if n in chosen_sums
            }
    recompute: Any = ()
    if rng.random() < 0.5:
        makers = (random_blocks, scattered_blocks, lambda *_: tuple(rng.sample(stages, 1)))
        recompute = rng.choice(makers)(graph, rng)
    lacking = rng.randrange(microbatches) if graph.batch > 1 and rng.random() < 0.5 else 0
    plan = Plan(
        tiles,
        devices,
        bn="microbatch" if microbatches > 1 else "global",
        sync=random_sync(devices, rng),
        bucket=rng.choice([0, 1000, 10**6]),
        microbatches=microbatches,
        recompute=recompute,
        split_backward=is_split or rng.random() < 0.2,
        sums=sums,
        stages=stages,
        schedule=schedule,
        workers=tuple(workers) if rng.random() < 0.8 else (),
        steps=STEPS,
        batch=graph.batch * microbatches - lacking if lacking else 0,
    )
    return with_legal_group(graph, plan)


def depends_on_the_order(graph: Graph, plan: Plan) -> bool:
    """Whether micro-batches depend on each other: through a buffer that the loss reads, or stages share."""
    stage_by_op, every = stage_of(plan), tuple(range(plan.microbatches))
    moved = any(sequence != every for sequence, _ in updates_of(plan, graph))
    stage_by_value = {o: stage_by_op[op.name] for op in graph.ops for o in op.outputs}
    for buffer, value in graph.updates.items():
        reached, stages = {buffer}, {stage_by_value[value]}
        for op in graph.ops:
            if not reached.isdisjoint(op.inputs):
                reached.update(op.outputs)
            if buffer in op.inputs:
                stages.add(stage_by_op[op.name])
        if (graph.loss in reached and moved) or len(stages) > 1:
            return plan.microbatches > 1
    return False


def verify(seed: int) -> str:
    rng = random.Random(seed)
    case = random_case(rng.randrange(10**9))
    note(repr(case))
    piped = PipelineTask(case.model, case.inputs, case.targets, case.loss, steps=STEPS, lr=0.01)
    plan = some_plan(piped.graph, rng)
    note(written(piped.graph, plan))
    names = ("stages", "workers", "batch", "schedule")
    note("\n".join(f"{name} = {getattr(plan, name)!r}" for name in names))
    try:
        program = lower(piped.graph, plan)
    except InputError as error:
        return f"refused: {str(error)[:40]}"
    if depends_on_the_order(piped.graph, plan):
        return "depends on the order"
    try:
        sizes = tuple(program.micro_batch_sizes)
        piped.plain(sizes)
    except (ValueError, RuntimeError, IndexError):  # the module needs more samples
        return "the module refuses"
    try:
        piped.verify(plan)
    except Mismatch:
        if piped.is_fragile(plan):
            reject()
        raise
    return "equal"


@settings(
    phases=[Phase.explicit, Phase.generate]
)  # no shrinking: a smaller seed is not a smaller module
@given(seed=st.integers(0, 2**40))
def test_is_refused_or_trains_as_the_plain_module_does(seed: int) -> None:
    event(verify(seed))
