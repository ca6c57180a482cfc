"""Runs one rank of a plan on a GPU that all ranks share; writes the peak bytes of PyTorch's allocator."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from raddle.runtime.job import load_job, optimizer_for
from raddle.runtime.trainer import Trainer
from raddle.transport.process_transport import ProcessTransport

STEPS = 2


def main(path: str) -> None:
    """Train by the plan in the file `path`; write the peak to the file PATH.rankN next to it."""
    place = torch.device("cuda", 0)
    torch.cuda.set_device(place)
    transport = ProcessTransport(place, "gloo", 120.0)
    job = load_job(path)
    trainer = Trainer(
        job.workload.model, job.program, optimizer_for(job.plan.optimizer), transport, place,
        loss=job.workload.loss,
    )  # fmt: skip
    trainer.train([job.batch] * STEPS)  # warm-up: allocates momentum and workspaces
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    trainer.train([job.batch] * STEPS)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    Path(path).with_suffix(f".rank{os.environ['RANK']}").write_text(str(peak))
    transport.close()


if __name__ == "__main__":
    main(sys.argv[1])
