"""Checks on a GPU that plans compute what the module computes: two ranks on one card, over gloo.

torchrun --standalone --nproc-per-node 2 bench/runtime/gpu_equal.py PLANS
"""

from __future__ import annotations

import copy
import pathlib
import sys

import torch
import torch.distributed as dist

import raddle
from raddle import zoo


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    for path in sorted(pathlib.Path(folder).glob("*-tiny.*.2.json")):
        name = path.name.split(".")[0]
        work = zoo.load(name, device="cuda", dtype=torch.float64)
        for module in work.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.0
        trainer = raddle.parallelize(
            copy.deepcopy(work.model), path, sgd, loss=work.loss, device="cuda:0", backend="gloo"
        )
        given = [*work.inputs, *work.targets]
        optimizer = sgd(work.model.parameters())
        worst = 0.0
        for _ in range(2):
            mine = float(trainer.step(*given))
            optimizer.zero_grad()
            loss = work.loss(work.model(*work.inputs), *work.targets)
            loss.backward()
            optimizer.step()
            worst = max(worst, abs(mine - loss.item()) / abs(loss.item()))
        state = trainer.state_dict()
        for key, tensor in work.model.state_dict().items():
            off = (state[key].double() - tensor.cpu().double()).norm()
            worst = max(worst, float(off / (1 + tensor.double().norm().cpu())))
        trainer.close()
        if dist.get_rank() == 0:
            print(
                f"{path.name:44} worst deviation {worst:.1e}",
                "ok" if worst < 1e-9 else "WRONG",
                flush=True,
            )


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1])
