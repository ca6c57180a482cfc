"""Runs one rank in the lab: it measures the link, the plans' operators, then all rows of Table 5.15.

The table is the thesis's (B. Eserol, docs/papers.md). A row is a kind of parallelism: a plan, or torch's
DDP (lab_plans.py). lab_grid.py writes the request and starts the ranks with torchrun:

    python -m experiments.thesis.lab_rank request.json
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from experiments.messages import measure_messages
from experiments.timing_rank import GraphsBySize, Step, ddp_step, make_step
from raddle.api.clusters import cores
from raddle.api.costs import distinct_tiles, measure
from raddle.api.models import Workload, load_workload
from raddle.api.plans import OVERLAPPED_STEPS, is_asynchronous
from raddle.api.programs import active_values
from raddle.api.running import Trainer
from raddle.api.transports import end_with_parent
from raddle.files import read_scratch, write_scratch

REPEATS = 3  # measurements of an operator


def main(request: dict[str, Any]) -> None:
    """Measures all batches of the request and writes the results to its file `out`.

    request: as `_measure` (lab_grid.py) wrote it; its `batches` has for each batch the `kinds` of `_batch`.
    """
    end_with_parent()  # this process ends when its parent does
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    link = measure_messages(5) if dist.get_world_size() > 1 else None
    result: dict[str, Any] = {"link": link, "batches": {}}
    for batch, kinds in request["batches"].items():
        result["batches"][batch] = _batch(request, int(batch), kinds)
        if dist.get_rank() == 0:  # saved at once, in case a later batch fails
            write_scratch(request["out"], result)
    dist.barrier()
    dist.destroy_process_group()


def _batch(request: dict[str, Any], batch: int, kinds: dict[str, float | str]) -> dict[str, Any]:
    """Measures images/s of every row, and seconds of every operator tile in their plans.

    kinds: label of a row -> file of its plan; for DDP: megabytes of a bucket.
    """
    workload = load_workload(request["spec"], batch=batch, device="cpu")
    trainers: dict[str, Trainer] = {}
    graphs = GraphsBySize(workload)
    steps = {
        label: make_step(workload, kind, label, trainers, graphs) for label, kind in kinds.items()
    }
    # One rank is timed with plain torch; its plan only says which operators to measure.
    if dist.get_world_size() == 1:
        steps = {label: ddp_step(workload, workload.model) for label in steps}  # type: ignore[arg-type]
    profile = _profile(list(trainers.values()), request["device"])
    times: dict[str, list[float]] = {label: [] for label in steps}
    count = max(2, min(8, request["images"] // batch))  # steps of a block
    for _ in range(request["rounds"]):
        for label, step in steps.items():
            trainer = trainers.get(label)
            if trainer is not None and is_asynchronous(trainer.plan):
                if not times[label]:  # measured in the first round only: one run of many steps
                    times[label].append(_overlapped(workload, trainer))
            else:
                times[label].append(_block(step, trainer, count))
    dist.barrier()
    for trainer in trainers.values():
        trainer.close()
    rates = {label: batch / statistics.median(seconds) for label, seconds in times.items()}
    return {"images_per_s": rates, "profile": profile}


def _block(step: Step, trainer: Trainer | None, count: int) -> float:
    """Returns the seconds per step.

    The first step is not timed, because no earlier step's messages delay it.
    """
    if trainer is not None:
        trainer.synchronize()
    step()

    def steps() -> None:
        """Trains `count` steps."""
        for _ in range(count):
            step()

    seconds = _slowest(steps) / count
    if trainer is not None:
        trainer.synchronize()
    return seconds


def _overlapped(workload: Workload, trainer: Trainer) -> float:
    """Returns the seconds per step of asynchronous training, over OVERLAPPED_STEPS steps in a row."""
    part = trainer.part(workload.batch)
    return _slowest(partial(trainer.train, [part] * OVERLAPPED_STEPS)) / OVERLAPPED_STEPS


def _slowest(call: Callable[[], Any]) -> float:
    """Calls `call` on all ranks; returns the seconds of the slowest."""
    dist.barrier()
    start = time.perf_counter()
    call()
    spent = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return float(spent)


def _profile(trainers: Iterable[Trainer], kind: str) -> dict[str, float]:
    """Returns the seconds of every distinct tile, by its key in a Profile.

    kind: of device, a part of the keys. As many ranks measure as there are cores, at the same time; they
    divide the tiles among them.
    """
    rank, measuring_ranks = dist.get_rank(), min(cores(), dist.get_world_size())
    seen: set[str] = set()
    measured_here: dict[str, float] = {}
    for trainer in trainers:
        # active: values that have gradients; tiles_by_key: key in the profile -> (operator, box)
        graph, active = trainer.graph, active_values(trainer.graph)
        tiles_by_key = distinct_tiles(graph, trainer.plan.tiles, kind)
        new_tiles = [tile for name, tile in tiles_by_key.items() if name not in seen]
        seen |= tiles_by_key.keys()
        # for each operator: the operands whose gradients are computed, and so measured too
        grad_operands = {
            op.name: [i for i, n in enumerate(op.inputs) if n in active] for op in graph.ops
        }
        if rank < measuring_ranks:
            measured_here |= measure(
                graph, new_tiles[rank::measuring_ranks], grad_operands, kind, repeats=REPEATS
            ).seconds
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, measured_here)
    return {name: seconds for of_rank in by_rank for name, seconds in of_rank.items()}


if __name__ == "__main__":
    main(read_scratch(sys.argv[1]))
