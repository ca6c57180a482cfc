"""Checks on a GPU that plans compute what the module computes: N ranks share one card.

torchrun --standalone --nproc-per-node N bench/runtime/gpu_equal.py PLANS [gloo|nccl]

PLANS is a folder with plans for N ranks, such as vgg16-tiny.data.N.json. NCCL takes several ranks on one
card if each has a host id of its own; their speed then says nothing.
"""

from __future__ import annotations

import copy
import os
import pathlib
import sys

import torch
import torch.distributed as dist

import raddle
from raddle import zoo


def main(folder: str, backend: str = "gloo") -> int:
    """Train two steps by each plan and by the plain module; return the number of plans that deviate."""
    os.environ["NCCL_HOSTID"] = f"rank{os.environ['RANK']}"
    torch.cuda.set_device(0)
    dist.init_process_group(backend)
    wrong = 0
    for path in sorted(pathlib.Path(folder).glob(f"*-tiny.*.{dist.get_world_size()}.json")):
        name = path.name.split(".")[0]
        work = zoo.load(name, device="cuda", dtype=torch.float64)
        for module in work.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.0
        trainer = raddle.parallelize(
            copy.deepcopy(work.model),
            sgd,
            plan=path,
            loss=work.loss,
            example=work.batch,
            device="cuda:0",
            backend=backend,
        )
        batch = work.batch
        optimizer = sgd(work.model.parameters())
        worst = 0.0
        for _ in range(2):
            raddle_loss = float(trainer.step(batch))
            optimizer.zero_grad()
            loss = work.loss(work.model, work.batch)
            loss.backward()
            optimizer.step()
            worst = max(worst, abs(raddle_loss - loss.item()) / abs(loss.item()))
        state = trainer.state_dict()
        for key, tensor in work.model.state_dict().items():
            deviation = (state[key].double() - tensor.cpu().double()).norm()
            worst = max(worst, float(deviation / (1 + tensor.double().norm().cpu())))
        trainer.close()
        wrong += not worst < 1e-9  # the computation is in float64; NaN is wrong too
        if dist.get_rank() == 0:
            print(
                f"{path.name:44} worst deviation {worst:.1e}",
                "ok" if worst < 1e-9 else "WRONG",
                flush=True,
            )
    dist.destroy_process_group()
    return wrong


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
