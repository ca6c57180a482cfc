"""Times AlexNet on one rank in the lab, with OWT and with DistributedDataParallel, steps in turn.

OWT is "one weird trick": convolutions are split by samples, linear layers by features. run.py starts a rank
on each emulated host of the lab.
"""

from __future__ import annotations

import copy
import json
import pathlib
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import raddle
from raddle import zoo

WARM_UP = 2  # steps that are not timed


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3)


def main(folder: str, batches: list[int], rounds: int) -> None:
    """Measure the link and each batch; rank 0 writes rows.json. folder: has the plans, owt.BATCH.json."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    link = _link()
    rows = [measure(pathlib.Path(folder), batch, rounds) for batch in batches]
    if dist.get_rank() == 0:
        (pathlib.Path(folder) / "rows.json").write_text(json.dumps({"link": link, "rows": rows}))
    dist.destroy_process_group()


def _link() -> dict[str, float]:
    """Return the bandwidth (bytes/s) and latency (s) to the next rank while all ranks send."""
    rank, size = dist.get_rank(), dist.get_world_size()
    times = {}
    for nbytes in (4096, 16 * 2**20):
        buffer, other = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
        seconds = []
        for _ in range(5):
            dist.barrier()
            start = time.perf_counter()
            work = [dist.isend(buffer, (rank + 1) % size), dist.irecv(other, (rank - 1) % size)]
            for w in work:
                w.wait()
            seconds.append(time.perf_counter() - start)
        times[nbytes] = statistics.median(seconds)
    (small, short), (large, long) = times.items()  # (bytes, seconds)
    bandwidth = (large - small) / (long - short)
    return {"bandwidth": bandwidth, "latency": max(1e-5, short - small / bandwidth)}


def measure(folder: pathlib.Path, batch: int, rounds: int) -> dict[str, Any]:
    """Return the median times of a step with OWT and with DDP, and the bytes that OWT sends in a step."""
    work = zoo.load("alexnet", batch=batch, device="cpu")
    for module in work.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer = raddle.parallelize(
        copy.deepcopy(work.model),
        sgd,
        plan=folder / f"owt.{batch}.json",
        loss=work.loss,
        example=work.batch,
        device="cpu",
    )
    part = trainer.part(work.batch)
    module = DistributedDataParallel(work.model)
    optimizer = sgd(module.parameters())
    rank, size = dist.get_rank(), dist.get_world_size()
    batch_part = [t.chunk(size)[rank] for t in work.batch]

    def ddp() -> float:
        optimizer.zero_grad()
        loss = work.loss(module, batch_part)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    steps = {"owt": lambda: float(trainer.step(part)), "ddp": ddp}
    times: dict[str, list[float]] = {name: [] for name in steps}
    sent_before = sum(trainer.transport.sent.values())
    for number in range(WARM_UP + rounds):
        for name, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            if number >= WARM_UP:
                times[name].append(time.perf_counter() - start)
    sent = (sum(trainer.transport.sent.values()) - sent_before) / (WARM_UP + rounds)
    trainer.close()
    medians = {f"{name}_ms": 1e3 * statistics.median(t) for name, t in times.items()}
    return {
        "batch": batch,
        **medians,
        "faster": medians["ddp_ms"] / medians["owt_ms"],
        "sent": sent,
    }


if __name__ == "__main__":
    main(sys.argv[1], [int(b) for b in sys.argv[2].split(",")], int(sys.argv[3]))
