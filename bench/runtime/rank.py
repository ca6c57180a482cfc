"""Times raddle and its peer (DDP or DTensor) on one rank, steps in turn; run.py starts it on two ranks."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from cases import CASES, Case, captured, dtensor
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import raddle

WARM_UP = 5  # steps that are not timed


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3)


def main(only: str, rounds: int, out: str) -> None:
    """Time the cases whose name contains `only`; rank 0 writes the rows as JSON to the file `out`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = [measure(case, rounds) for case in CASES if only in case.name]
    if dist.get_rank() == 0:
        pathlib.Path(out).write_text(json.dumps(rows, indent=1))
    dist.destroy_process_group()


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Return the median times of a case, and the losses of both, which must be equal."""
    torch.manual_seed(0)
    model = case.model()
    inputs, targets = case.batch()
    graph = captured(case, model, inputs, targets)
    trainer = raddle.parallelize(
        copy.deepcopy(model),
        sgd,
        plan=_plan(case, graph),
        loss=raddle.supervised(case.loss, targets=len(targets)),
        graph=graph,
        device="cpu",
    )
    batch = trainer.part((*inputs, *targets))
    peer = _peer(case, model, inputs, targets)
    steps: dict[str, Callable[[], Any]] = {"raddle": lambda: trainer.step(batch), "peer": peer}
    losses = [[float(steps["raddle"]()), float(peer())] for _ in range(WARM_UP)]
    times: dict[str, list[float]] = {"raddle": [], "peer": []}
    for number in range(rounds):
        order = list(steps) if number % 2 else list(steps)[::-1]
        for name in order:
            dist.barrier()
            start = time.perf_counter()
            steps[name]()
            times[name].append(time.perf_counter() - start)
    trainer.close()
    ratios = [a / b for a, b in zip(times["raddle"], times["peer"], strict=True)]
    return {
        "case": case.name,
        "peer": case.peer,
        "raddle_ms": 1e3 * statistics.median(times["raddle"]),
        "peer_ms": 1e3 * statistics.median(times["peer"]),
        "ratio": statistics.median(times["raddle"]) / statistics.median(times["peer"]),
        "ratio_of_pairs": statistics.median(ratios),
        "losses": losses[-1],
    }


def _plan(case: Case, graph: Any) -> Any:
    """Return the plan of a case, or its file in the folder RADDLE_PLANS, if the machine cannot plan."""
    folder = os.environ.get("RADDLE_PLANS")
    return case.plan(graph) if folder is None else f"{folder}/{case.name}.json"


def _peer(case: Case, model: Any, inputs: list[Tensor], targets: list[Tensor]) -> Callable[[], Any]:
    """Return the peer's training step on this rank; inputs, targets: the global batch."""
    rank = dist.get_rank()
    if case.peer == "ddp":
        module: Any = DistributedDataParallel(model)
        half = len(inputs[0]) // 2
        parts = [t[rank * half : (rank + 1) * half] for t in [*inputs, *targets]]
        rank_inputs, rank_targets = parts[: len(inputs)], parts[len(inputs) :]
    else:
        module = dtensor(case, model)
        rank_inputs, rank_targets = inputs, targets
    optimizer = sgd(module.parameters())

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = case.loss(module(*rank_inputs), *rank_targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
