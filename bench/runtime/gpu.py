"""One rank on a GPU: times a plan for one device and the plain eager module, steps in turn.

torchrun --standalone --nproc-per-node 1 bench/runtime/gpu.py PLANS   (a folder of plans, see plans.py)
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

import raddle
from raddle import zoo

MODELS = {"vgg16": 64, "resnet50": 64, "gpt": 8}
ROUNDS = 20


def measure(name: str, batch: int, folder: str) -> dict[str, Any]:
    work = zoo.load(name, batch=batch, device="cuda")
    for module in work.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout"):
            module.dropout = 0.0
    trainer = raddle.parallelize(
        copy.deepcopy(work.model), f"{folder}/{name}.1.json", sgd, loss=work.loss, device="cuda:0"
    )
    optimizer = sgd(work.model.parameters())
    given = [*work.inputs, *work.targets]

    def plain() -> None:
        optimizer.zero_grad()
        work.loss(work.model(*work.inputs), *work.targets).backward()
        optimizer.step()

    sides = {"raddle": lambda: trainer.step(*given), "plain": plain}
    times: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(ROUNDS + 5):
        for side in list(sides) if number % 2 else list(sides)[::-1]:
            torch.cuda.synchronize()
            start = time.perf_counter()
            sides[side]()
            torch.cuda.synchronize()
            if number >= 5:
                times[side].append(1e3 * (time.perf_counter() - start))
    medians = {f"{side}_ms": statistics.median(t) for side, t in times.items()}
    trainer.close()
    return {
        "model": name,
        "batch": batch,
        **medians,
        "ratio": medians["raddle_ms"] / medians["plain_ms"],
        "card": torch.cuda.get_device_name(),
        "backend": dist.get_backend() if dist.is_initialized() else "nccl",
    }


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-4)


if __name__ == "__main__":
    for model, size in MODELS.items():
        try:
            print(json.dumps(measure(model, size, sys.argv[1])), flush=True)
        except Exception as error:
            print(model, type(error).__name__, str(error)[:500], flush=True)
