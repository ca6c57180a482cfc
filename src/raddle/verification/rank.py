"""Runs one rank of a verification as a process: `python -m raddle.verification.rank FOLDER`.

launch.py starts the process by torchrun. The folder holds settings.json and the reference plain.pt. The
rank writes its process id to rank<N>.pid, and its findings or error to rank<N>.json; rank 0 also writes the
number of the current step to `progress`. The *twin* of a job is the same job in float64 (twin.py).
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
from typing import Any

import torch

from raddle.files import read_scratch, write_scratch
from raddle.transport.orphans import end_with_parent
from raddle.transport.process_transport import ProcessTransport
from raddle.verification.compare_rank import Findings, compare
from raddle.verification.twin import load_twin
from raddle.zoo.loading import default_dtype


def main(folder: pathlib.Path) -> int:
    """Train and compare; write the result to the folder and return the exit code."""
    rank = int(os.environ["RANK"])
    write_scratch(folder / f"rank{rank}.pid", os.getpid())
    end_with_parent()
    settings = read_scratch(folder / "settings.json")
    torch.set_num_threads(settings["threads"])
    result: dict[str, Any]
    try:
        result = dataclasses.asdict(_verify(folder, rank, settings))
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    write_scratch(folder / f"rank{rank}.json", result)
    return 1 if "error" in result else 0


def _verify(folder: pathlib.Path, rank: int, settings: dict[str, Any]) -> Findings:
    """Load the job and the reference, train this rank, compare, and return the findings."""
    transport = ProcessTransport(torch.device("cpu"), "gloo", settings["timeout"])

    def report_step(step: int) -> None:
        if rank == 0:
            write_scratch(folder / "progress", step)

    try:
        keys = ("model", "seed", "bn")
        job = load_twin(settings["plan"], **{k: settings[k] for k in keys}).job
        plain = torch.load(folder / "plain.pt", mmap=True, weights_only=False)
        with default_dtype(torch.float64):
            return compare(job, plain, transport, settings["steps"], settings["seed"], report_step)
    except BaseException as error:
        transport.fail(f"{type(error).__name__}: {error}")  # lets the other ranks stop too
        raise
    finally:
        transport.close()


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
