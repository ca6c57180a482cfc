"""Runs one rank of the overhead benchmark: raddle and torch.distributed.pipelining take turns.

run.py starts two ranks with torchrun.
"""

from __future__ import annotations

import copy
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import harness
import torch
import torch.distributed as dist
from harness import SAMPLES, Row
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import raddle
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.tiling import whole_tiling

WARM_UP = 2
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def main(settings: dict[str, Any]) -> None:
    """Measures all rows; settings: rows (arguments of harness.Row), rounds (timed steps), out (file)."""
    torch.set_num_threads(1)
    harness.build()
    dist.init_process_group("gloo")
    rows = [measure(Row(*fields), settings["rounds"]) for fields in settings["rows"]]
    if dist.get_rank() == 0:
        pathlib.Path(settings["out"]).write_text(json.dumps(rows, indent=1))
    dist.destroy_process_group()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Returns the optimizer of both sides."""
    return torch.optim.SGD(parameters, lr=0.05)


def measure(row: Row, rounds: int) -> dict[str, Any]:
    """Returns the milliseconds and overheads of both sides for one row, after checking their losses.

    An overhead is the share by which a step takes longer than row.ideal.
    """
    trainer, ours = of_raddle(row)
    steps: dict[str, Callable[[], float | None]] = {"raddle": ours, "torch": of_torch(row)}
    harness.set_whole(True)
    losses = {name: [_counted(row, step) for _ in range(WARM_UP)] for name, step in steps.items()}
    _check(losses)
    harness.set_whole(False)
    leads = harness.calibrate(row)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        for name in list(steps) if number % 2 else list(steps)[::-1]:
            times[name].append(_timed(steps[name]))
    profile = _profile(trainer, ours)
    trainer.close()
    result: dict[str, Any] = {
        "schedule": row.schedule,
        "megabytes": row.megabytes,
        "ideal_ms": 1e3 * row.ideal,
    }
    for name, seconds in times.items():
        result[f"{name}_ms"] = 1e3 * statistics.median(seconds)
        result[f"{name}_overhead"] = statistics.median(seconds) / row.ideal - 1
        result[f"{name}_all_ms"] = [round(1e3 * t, 1) for t in seconds]
    result["ratio"] = result["raddle_overhead"] / result["torch_overhead"]
    result["profile_ms"] = profile
    result["leads_ms"] = [round(1e3 * lead, 2) for lead in leads]
    return result


def of_raddle(row: Row) -> tuple[Any, Callable[[], float]]:
    """Returns raddle's trainer, and a function that trains one step and returns the loss."""
    torch.manual_seed(0)
    model, (x, target) = harness.model(row), harness.batch(row)
    graph = capture(model, (x[:SAMPLES], target[:SAMPLES]), raddle.supervised(harness.loss))
    trainer = raddle.parallelize(
        model,
        sgd,
        plan=planned(graph, row),
        loss=raddle.supervised(harness.loss),
        graph=graph,
        device="cpu",
    )
    return trainer, lambda: float(trainer.step((x, target)))


def planned(graph: Graph, row: Row) -> Plan:
    """Returns the plan: the first sleeping operator is a stage, the second and the loss another."""
    names = [op.name for op in graph.ops]
    cut = 1 + names.index(graph.opaque_ops[0].name)
    stages = tuple(names[:cut]), tuple(names[cut:])
    stage_of = {name: s for s, stage_ops in enumerate(stages) for name in stage_ops}
    tiles = {
        op.name: whole_tiling([d.size for d in op.space.dims], [stage_of[op.name]])
        for op in graph.ops
    }
    return Plan(
        tiles, 2, microbatches=row.microbatches, stages=stages, schedule=row.schedule,
        batch=row.microbatches * SAMPLES,
    )  # fmt: skip


def of_torch(row: Row) -> Callable[[], float | None]:
    """Returns a function that trains one step by torch.distributed.pipelining and returns the loss.

    Only the last rank knows the loss; the others return None.
    """
    rank, (x, target) = dist.get_rank(), harness.batch(row)
    torch.manual_seed(0)
    module = copy.deepcopy(harness.model(row)[rank])
    optimizer = sgd(module.parameters())
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = SCHEDULES[row.schedule](stage, row.microbatches, loss_fn=harness.loss)

    def step() -> float | None:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, losses=losses)
        optimizer.step()
        return float(torch.stack(losses).detach().mean()) if losses else None

    return step


def _counted(row: Row, step: Callable[[], float | None]) -> float | None:
    """Returns a step's loss, and checks that every micro-batch ran forward and backward here."""
    before = harness.calls()
    loss = step()
    ran = [now - then for now, then in zip(harness.calls(), before, strict=True)]
    assert min(ran) >= row.microbatches, (
        f"stages ran {ran} times for {row.microbatches} micro-batches"
    )
    return loss


def _check(losses: dict[str, list[float | None]]) -> None:
    """Checks that both sides have the same losses, on the rank that knows torch's."""
    if losses["torch"][0] is not None:
        for a, b in zip(losses["raddle"], losses["torch"], strict=True):
            assert a is not None
            assert b is not None
            assert abs(a - b) <= 1e-5 * abs(b), f"losses differ: {losses}"


def _timed(step: Callable[[], Any]) -> float:
    """Returns the seconds that a step takes on the slowest rank."""
    dist.barrier()
    start = time.perf_counter()
    step()
    spent = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return float(spent)


def _profile(trainer: Any, step: Callable[[], Any], repeats: int = 5) -> list[dict[str, float]]:
    """Returns, for each rank, the milliseconds of the median step by kind of action."""
    profiles = []
    for _ in range(repeats):
        spent: dict[str, float] = {}

        def record(action: Any, start: float, end: float, spent: dict[str, float] = spent) -> None:
            kind = type(action).__name__
            spent[kind] = spent.get(kind, 0.0) + end - start

        trainer.executor.record = record
        dist.barrier()
        start = time.perf_counter()
        step()
        total = time.perf_counter() - start
        spent["rest"] = total - sum(spent.values())
        profiles.append({"total": total, **spent})
    trainer.executor.record = None
    middle = sorted(profiles, key=lambda s: s["total"])[repeats // 2]
    milliseconds = {name: round(1e3 * seconds, 2) for name, seconds in middle.items()}
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, milliseconds)
    return ranks


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
