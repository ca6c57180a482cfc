"""Simulates GEMS with data parallelism on more and more GPUs, next to the paper's scaling efficiency.

This is the part `scaling` of `raddle reproduce gems-unet`. The paper is GEMS (Jain et al., SC20).

GEMS: two replicas of the stages run on the same devices in opposite order.
"""

# on: the cluster that plans are made for

from __future__ import annotations

from typing import NamedTuple

from experiments.experiment import RunOptions
from experiments.gems_unet import nets
from experiments.gems_unet.methods import Method, make_plans, predict
from raddle.api.clusters import cluster
from raddle.api.loading import capture_model
from raddle.api.results import Cell, Chart, Column, Line, Section, Table

NET, SIDE = "resnet110", 1024  # the paper trains on tiles of this size, cut from pathology slides
STAGES, MICRO_BATCHES = 4, 4  # of a pipeline; a micro-batch has one image
PRINTED = 97.32  # per cent, abstract: ResNet-1k on 1,024 V100


class ScalingPoint(NamedTuple):
    """The throughput with one number of devices."""

    devices: int
    rate: float  # images a second


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    graph = capture_model(nets.spec(NET, SIDE), 1)
    points: list[ScalingPoint] = []
    counts = (1, 4) if options.quick else (1, 2, 4, 8, 16)
    for number, count in enumerate(counts):
        options.report(f"{STAGES * count} GPUs", number / len(counts))
        on, batch = cluster(f"v100:{count}x{STAGES}"), MICRO_BATCHES * count
        method = Method("GEMS x data", "gems", batch, stages=STAGES, pipelines=count)
        seconds = predict(make_plans([method], graph, on, batch=batch)[method.name], on).seconds
        points.append(ScalingPoint(STAGES * count, batch / seconds))
    return section(points)


def efficiency(point: ScalingPoint, first: ScalingPoint) -> float:
    """Returns the scaling efficiency in per cent: images/s per device, relative to the first point."""
    return 100 * point.rate / first.rate * first.devices / point.devices


def section(points: list[ScalingPoint]) -> Section:
    """Returns the section with a sentence, a chart and a table; points: by rising number of devices."""
    first, last = points[0], points[-1]
    rows: list[list[Cell]] = [
        [point.devices, point.rate, efficiency(point, first), None] for point in points
    ]
    rows.append([1024, None, None, PRINTED])
    # Column: name, source of its numbers, digits after the point
    columns = [
        Column("GPUs"), Column("images/s", "simulated"), Column("efficiency, %", "simulated", 2),
        Column("efficiency, %", "printed", 2),
    ]  # fmt: skip
    text = (
        f"{NET} on {SIDE}² images, GEMS pipelines of {STAGES} stages with data parallelism between them: "
        f"{last.devices} GPUs reach {efficiency(last, first):.2f} % of {last.devices // first.devices} "
        f"times the images a second of {first.devices} GPUs; the paper prints {PRINTED} % on 1,024 GPUs, "
        "for 1000 layers."
    )
    note = (
        f"Nodes of {STAGES} V100 behind 100 Gb/s each, {MICRO_BATCHES} images of {SIDE}² for each "
        "pipeline: the "
        "batch grows with the GPUs. The simulation has no stragglers, no loading of images and no "
        "congestion beyond the nodes' links, so that it says what communication alone costs."
    )
    line = Line(NET, [(each.devices, efficiency(each, first)) for each in points], "simulated")
    printed = Line("paper, ResNet-1k", [(1024.0, PRINTED)], "printed")
    chart = Chart("Scaling", "GPUs", "efficiency, %", [line, printed], log_x=True)
    table = Table("GEMS pipelines with data parallelism between them", columns, rows, note)
    return Section("GEMS with data parallelism, scaled", text, [chart, table])
