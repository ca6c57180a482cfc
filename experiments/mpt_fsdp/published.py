"""Reads the published runs, which are not part of the repository."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from raddle.errors import InputError
from raddle.files import read_text

# Beside the checkout; README.md there says where the file comes from.
PUBLISHED = Path(__file__).resolve().parents[3] / "shared/data/published/mpt_fsdp.csv"


class Run(NamedTuple):
    """A published run."""

    model: str  # a name of networks.SHAPES
    sequence: int  # tokens of a sample
    gpus: int
    microbatch: int  # samples of a GPU in a micro-batch
    accumulate: int  # micro-batches of a step
    mfu: float  # model FLOPs utilization, in percent of the peak
    recompute: bool  # whether every layer is recomputed (activation checkpointing)
    parameters: int


def read_runs(path: Path | None = None) -> list[Run]:
    """Returns all runs of the file; InputError if it is not there. path: None: PUBLISHED."""
    path = path or PUBLISHED
    if not path.exists():
        raise InputError(
            f"the published runs are not in '{path}': they belong to no checkout, put the file there."
        )
    return [
        Run(
            row["model"], int(row["sequence"]), int(row["gpus"]), int(row["microbatch"]),
            int(row["accumulate"]), float(row["mfu"]), row["recompute"] == "True",
            int(row["parameters"]),
        )
        for row in csv.DictReader(read_text(path, "CSV").splitlines())
    ]  # fmt: skip
