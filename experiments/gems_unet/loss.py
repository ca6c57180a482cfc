"""Measures the time to a target loss: several methods train a narrow U-Net to segment digits.

This is the part `loss` of `raddle reproduce gems-unet`. The paper is GEMS (Jain et al., SC20).

Methods are those of methods.py. Steps are measured in blocks; a loss is the mean over a block.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from experiments.experiment import RunOptions
from experiments.gems_unet import nets
from experiments.gems_unet.methods import DEVICES, METHODS, make_plans
from experiments.gems_unet.training import LossCurve, train
from raddle.api.clusters import cluster
from raddle.api.loading import capture_model
from raddle.api.results import Cell, Chart, Column, Line, Section, Table

WIDTH_DIVISOR, BATCH = 8, 4
TARGET = 0.10  # the loss to be reached: mean cross entropy per pixel
# the methods (methods.py) that are trained
NAMES = ("one device", "1F1B", "GEMS MASTER", "spatial", "1F1B x data")
SLOW = "spatial by image"  # one image after the other, each split into tiles; not with --quick
TITLE = "Time to a loss on a segmentation task"


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    if importlib.util.find_spec("sklearn") is None:
        return Section(TITLE, skipped="scikit-learn, whose digits are the data, is not installed.")
    side, blocks, steps = (64, 9, 5) if options.quick else (128, 12, 10)
    spec = nets.spec("unet", side, width_divisor=WIDTH_DIVISOR)
    options.report("planning")
    graph = capture_model(spec, BATCH)
    chosen = [m for m in METHODS if m.name in NAMES or (m.name == SLOW and not options.quick)]
    plans = make_plans(chosen, graph, cluster(f"local:{DEVICES}"), batch=BATCH, model=spec)
    options.report("training", 0.1)
    curves = train(spec, plans, ranks=DEVICES, side=side, blocks=blocks, steps=steps)
    return section(curves, side, blocks, steps)


def section(curves: Mapping[str, LossCurve], side: int, blocks: int, steps: int) -> Section:
    """Returns the section with the curves.

    curves: by method; side: pixels of an image; blocks, steps: blocks of a curve, and steps of a block.
    """
    lines = [
        Line(name, list(zip(curve.seconds, curve.losses, strict=True)), "measured")
        for name, curve in curves.items()
    ]
    chart = Chart("Loss over time", "seconds of training", "mean cross entropy of a pixel", lines)
    rows: list[list[Cell]] = [
        [
            name, curve.reaches(TARGET), 1e3 * curve.seconds[-1] / (blocks * steps),
            curve.losses[0], curve.losses[-1], largest_loss_difference(curve, curves["one device"]),
        ]
        for name, curve in curves.items()
    ]  # fmt: skip
    # Column: name, source of its numbers, digits after the point
    columns = [
        Column("method"), Column(f"seconds to {TARGET}", "measured", 1), Column("step, ms", "measured", 0),
        Column("first block's loss", "measured", 4), Column("last block's loss", "measured", 4),
        Column("largest distance from one device's", "measured"),
    ]  # fmt: skip
    note = (
        f"U-Net of 1/{WIDTH_DIVISOR} of the widths, {side}² canvases of digits, batches of {BATCH}, Adam; "
        f"{blocks} blocks of {steps} steps, methods in turn block by block; drawing the data is not "
        f"timed. One thread a rank, {DEVICES} ranks; one device leaves three of them idle."
    )
    return Section(
        TITLE, _sentence(curves), [chart, Table("Time to the loss", columns, rows, note)]
    )


def largest_loss_difference(curve: LossCurve, other: LossCurve) -> float:
    """Returns the largest difference between the losses of two curves in the same block."""
    return max(abs(a - b) for a, b in zip(curve.losses, other.losses, strict=True))


def _sentence(curves: Mapping[str, LossCurve]) -> str:
    """Returns sentences: the seconds of each method to the target, and the methods that missed it."""
    reached = {n: s for n, c in curves.items() if (s := c.reaches(TARGET)) is not None}
    missed = [name for name in curves if name not in reached]
    words = []
    if reached:
        order = sorted(reached, key=reached.__getitem__)
        words.append(
            f"To a loss of {TARGET}: " + ", ".join(f"{n} {reached[n]:.1f} s" for n in order) + "."
        )
    if missed:
        words.append(f"Not reached in the steps that were run: {', '.join(missed)}.")
    return " ".join(words)
