"""Runs one rank that trains by every kind in turn, each until 90 % training accuracy.

A kind is a way to train (training_runs.py): plain torch, DDP, servers, or a plan. training.py writes the
request and starts the ranks with torchrun:

    python -m experiments.thesis.training_rank request.json

The time of evaluations does not count.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from experiments.thesis.training_runs import TrainingRun, start_run
from experiments.thesis.training_task import TARGET, batches, digits
from raddle import sync
from raddle.api.transports import end_with_parent
from raddle.files import read_scratch, write_scratch

BLOCK = 32  # steps between two evaluations; asynchronous steps overlap inside a block


def main(request: dict[str, Any]) -> None:
    """Trains by all kinds and writes the curves to a file.

    request: kinds (label -> argument `kind` of `start_run`), width (filters of the first layer), blocks (at
    most so many are trained), seeds (how many), out (file of the result).
    """
    end_with_parent()  # this process ends when its parent does
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sync.init()
    data = digits()
    results: dict[str, list[Any]] = {label: [] for label in request["kinds"]}
    for seed in range(request["seeds"]):
        for label, kind in request["kinds"].items():
            run = start_run(kind, request["width"], seed)
            curve = train(run, data, seed, request["blocks"])
            results[label].append({"curve": curve, "staleness": _staleness(run)})
            run.close()
    if dist.get_rank() == 0:
        write_scratch(request["out"], results)
    dist.barrier()
    sync.close()


def train(
    run: TrainingRun, data: tuple[Tensor, Tensor], seed: int, blocks: int
) -> list[tuple[float, float, float]]:
    """Trains up to the target accuracy or to `blocks` blocks of steps.

    Returns (seconds, accuracy, loss) before the first block and after each.
    """
    images, labels = data
    # order: endless batches of image numbers; spent: seconds of training
    order, spent = batches(len(images), seed), 0.0
    loss, accuracy = run.evaluate(images, labels)
    curve = [(0.0, accuracy, loss)]
    while accuracy < TARGET and len(curve) <= blocks:
        chosen = [(images[indices], labels[indices]) for indices in islice(order, BLOCK)]
        spent += _seconds(run, chosen)
        loss, accuracy = run.evaluate(images, labels)
        curve.append((spent, accuracy, loss))
    return curve


def _seconds(run: TrainingRun, chosen: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Trains on the chosen batches; returns the seconds until all ranks have up-to-date parameters."""
    dist.barrier()
    start = time.perf_counter()
    run.train(chosen)
    spent = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return float(spent)


def _staleness(run: TrainingRun) -> list[int]:
    """Returns the smallest and largest staleness over all ranks ([] for synchronous training)."""
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, run.staleness())
    numbers = [number for of_rank in by_rank for number in of_rank]
    return [min(numbers), max(numbers)] if numbers else []


if __name__ == "__main__":
    main(read_scratch(sys.argv[1]))
