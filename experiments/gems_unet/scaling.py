"""GEMS with data parallelism on more and more GPUs, simulated, beside the paper's scaling efficiency."""

from __future__ import annotations

from typing import NamedTuple

from experiments.experiment import RunOptions
from experiments.gems_unet import nets
from experiments.gems_unet.methods import Method, make_plans, predict
from raddle.api.clusters import cluster
from raddle.api.loading import capture_model
from raddle.api.results import Cell, Chart, Column, Line, Section, Table

NET, SIDE = "resnet110", 1024  # the paper's tiles of slides
STAGES, SHARE = 4, 4  # of a pipeline, and micro-batches that it takes in a step
PRINTED = 97.32  # per cent, abstract: ResNet-1k on 1,024 V100


class ScalingPoint(NamedTuple):
    devices: int
    rate: float  # images a second


def make(asked: RunOptions) -> Section:
    graph = capture_model(nets.spec(NET, SIDE), 1)
    found: list[ScalingPoint] = []
    counts = (1, 4) if asked.quick else (1, 2, 4, 8, 16)
    for number, count in enumerate(counts):
        asked.report(f"{STAGES * count} GPUs", number / len(counts))
        on, batch = cluster(f"v100:{count}x{STAGES}"), SHARE * count
        own = Method("GEMS x data", "gems", batch, stages=STAGES, pipelines=count)
        seconds = predict(make_plans([own], graph, on, batch=batch)[own.name], on).seconds
        found.append(ScalingPoint(STAGES * count, batch / seconds))
    return section(found)


def efficiency(own: ScalingPoint, first: ScalingPoint) -> float:
    """Per cent of so many times the first one's images a second."""
    return 100 * own.rate / first.rate * first.devices / own.devices


def section(found: list[ScalingPoint]) -> Section:
    first, last = found[0], found[-1]
    rows: list[list[Cell]] = [[f.devices, f.rate, efficiency(f, first), None] for f in found]
    rows.append([1024, None, None, PRINTED])
    columns = [
        Column("GPUs"), Column("images/s", "simulated"), Column("efficiency, %", "simulated", 2),
        Column("efficiency, %", "printed", 2),
    ]  # fmt: skip
    text = (
        f"{NET} on {SIDE}² images, pipelines of {STAGES} stages side by side: "
        f"{efficiency(last, first):.2f} % of {last.devices // first.devices} times {first.devices} GPUs' "
        f"images a second on {last.devices}; the paper prints {PRINTED} % on 1,024, for 1000 layers."
    )
    note = (
        f"Nodes of {STAGES} V100 behind 100 Gb/s each, {SHARE} images of {SIDE}² for each pipeline: the "
        "batch grows with the GPUs. The simulation has no stragglers, no input and no congestion beyond "
        "the nodes' links, so that it says what communication alone costs."
    )
    line = Line(NET, [(f.devices, efficiency(f, first)) for f in found], "simulated")
    printed = Line("paper, ResNet-1k", [(1024.0, PRINTED)], "printed")
    chart = Chart("Scaling", "GPUs", "efficiency, %", [line, printed], log_x=True)
    table = Table("GEMS side by side", columns, rows, note)
    return Section("GEMS with data parallelism, scaled", text, [chart, table])
