"""Runs one rank of training.py, which starts it with torchrun:

    python -m experiments.gems_unet.training_rank request.json

Every rank trains by all plans, which take turns block by block (a block is some steps).
"""

from __future__ import annotations

import copy
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

import raddle
from experiments.gems_unet.segmentation import batch
from raddle.api.models import load_workload
from raddle.api.running import Trainer
from raddle.api.transports import end_with_parent
from raddle.files import read_scratch, write_scratch

RATE = 1e-2  # Adam's learning rate
WARM_UP_SEED = 10**6  # of the warm-up batch; the seed of any other batch is the number of its step


def main(request: dict[str, Any]) -> None:
    """Trains by all plans; rank 0 writes the loss curves to a file.

    request: as `train` (training.py) wrote it; its `plans` has the file of each plan, by label.
    """
    end_with_parent()  # this process ends when its parent does
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    workload = load_workload(request["spec"], batch=request["batch"], device="cpu")
    trainers = {
        label: raddle.parallelize(
            copy.deepcopy(workload.model),
            _adam,
            plan=path,
            loss=workload.loss,
            example=workload.batch,
            device="cpu",
        )
        for label, path in request["plans"].items()
    }
    for trainer in trainers.values():  # warm-up: the first step allocates buffers
        trainer.step(trainer.part(batch(request["batch"], request["side"], WARM_UP_SEED)))
    curves: dict[str, dict[str, list[float]]] = {
        label: {"seconds": [], "losses": []} for label in trainers
    }
    order = list(trainers)
    for block in range(request["blocks"]):
        # each block begins with another plan, so that none always has the same place in the order
        for label in order[block % len(order) :] + order[: block % len(order)]:
            seconds, loss = _block(trainers[label], request, block)
            before = curves[label]["seconds"][-1] if curves[label]["seconds"] else 0.0
            curves[label]["seconds"].append(before + seconds)
            curves[label]["losses"].append(loss)
    if dist.get_rank() == 0:
        write_scratch(request["out"], curves)
    dist.barrier()
    for trainer in trainers.values():
        trainer.close()
    dist.destroy_process_group()


def _adam(parameters: Any) -> torch.optim.Optimizer:
    """Returns the optimizer that all plans use."""
    return torch.optim.Adam(parameters, lr=RATE)


def _block(trainer: Trainer, request: dict[str, Any], block: int) -> tuple[float, float]:
    """Trains a block; returns the slowest rank's seconds (without drawing batches) and the mean loss."""
    steps = request["steps"]
    seeds = range(block * steps, (block + 1) * steps)
    batches = [trainer.part(batch(request["batch"], request["side"], seed)) for seed in seeds]
    dist.barrier()
    begin = time.perf_counter()
    losses = [float(trainer.step(examples)) for examples in batches]
    trainer.synchronize()
    spent = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return float(spent), sum(losses) / len(losses)


if __name__ == "__main__":
    main(read_scratch(sys.argv[1]))
