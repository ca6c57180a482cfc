"""Trains a U-Net by several plans, which take turns block by block (a block is some steps).

Returns the loss of each plan over time. A PlannedMethod (methods.py) is a plan and the graph of its
micro-batch.
"""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from experiments.gems_unet.methods import PlannedMethod
from experiments.timing import run_ranks
from raddle.api.plans import save_plan
from raddle.files import read_scratch, write_scratch


class LossCurve(NamedTuple):
    """The seconds of training until the end of each block of steps, and the mean loss of each block."""

    seconds: Sequence[float]
    losses: Sequence[float]

    def reaches(self, target: float) -> float | None:
        """Returns the seconds until a block's mean loss is at the target or below; None if none is."""
        pairs = zip(self.seconds, self.losses, strict=True)
        return next((seconds for seconds, loss in pairs if loss <= target), None)


def train(
    spec: str, plans: Mapping[str, PlannedMethod], *, ranks: int, side: int, blocks: int, steps: int
) -> dict[str, LossCurve]:
    """Trains on `ranks` ranks; all plans see the same batches of segmentation.py in the same order.

    side: pixels of an image; steps: of a block.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        files = {}
        for number, (label, (graph, plan)) in enumerate(plans.items()):
            files[label] = str(folder / f"{number}.json")
            # The ranks train with Adam (training_rank.py); the plans for other machines are for momentum.
            save_plan(replace(plan, optimizer="adam"), graph, files[label])
        batch = next(iter(plans.values())).plan.batch
        request = {
            "spec": spec, "plans": files, "batch": batch, "side": side, "blocks": blocks,
            "steps": steps, "out": str(folder / "result.json"),
        }  # fmt: skip
        write_scratch(folder / "request.json", request)
        rank = "experiments.gems_unet.training_rank"
        run_ranks(ranks, None, ["-m", rank, str(folder / "request.json")])
        curves = read_scratch(folder / "result.json")
    return {label: LossCurve(**curve) for label, curve in curves.items()}
