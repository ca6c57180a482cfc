"""Measures throughput at several bandwidths: whole parameters, slices, slices with priority (P3).

This is the part `bandwidth` of `raddle reproduce p3`. The paper is "Priority-based Parameter Propagation"
(Jayarajan et al., arXiv 1905.03960).

A *variant* (sync_timing.py) is one way to train; its runner is torch's DDP or a data-parallel plan.
Printed: a number that the paper prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from experiments.experiment import RunOptions
from experiments.links import LabUnavailable
from experiments.sync_timing import (
    DDP,
    LabMeasurement,
    SyncVariant,
    TimingJob,
    measure_in_lab,
    predict,
)
from raddle.api.lab import parse_rate
from raddle.api.results import Cell, Chart, Column, Line, Section, Table

QUICK = ("500mbit", "1gbit", "4gbit")
FULL = ("100mbit", "250mbit", "500mbit", "1gbit", "2gbit", "4gbit")
SLOW = 300e6  # bit/s: below it steps take long, so fewer are measured
HOSTS = 2

# ps: servers of whole parameters; ps:sliced: of slices; p3: of slices with priority
DDP_LABEL, ALLREDUCE, WHOLE, SLICED, P3 = "DDP", "all-reduce", "ps", "ps:sliced", "p3"
VARIANTS = {
    DDP_LABEL: DDP,
    ALLREDUCE: SyncVariant("plan"),
    WHOLE: SyncVariant("plan", "ps"),
    SLICED: SyncVariant("plan", "ps:sliced"),
    P3: SyncVariant("plan", "p3"),
}


class PrintedGain(NamedTuple):
    """The paper's largest gains in throughput over its baseline, and the link rates where they are.

    A gain of 1.26: 26 % more samples per second than the baseline. None: no figure is known here.
    """

    model: str
    p3: float | None = None
    p3_at: str = ""
    sliced: float | None = None
    sliced_at: str = ""


@dataclass(frozen=True)
class NetCase:
    """A network that is measured, and what the paper prints for it."""

    name: str  # of nets.py
    title: str
    batch: int  # global
    printed: PrintedGain


NETS = (
    NetCase("resnet50", "ResNet-50-like", 16, PrintedGain("ResNet-50", 1.26, "4 Gbit/s")),
    NetCase("vgg19", "VGG-19-like", 20,
        PrintedGain("VGG-19", 1.66, "15 Gbit/s", 1.49, "30 Gbit/s")),
    NetCase("inception", "Inception-like", 8, PrintedGain("InceptionV3")),
    NetCase("lstm", "LSTM-like", 16, PrintedGain("Sockeye", 1.38, "")),
)  # fmt: skip


class Point(NamedTuple):
    """The samples per second of a network at one link rate, by label of a variant."""

    bits: float  # bit/s of the link
    measured: Mapping[str, float]
    simulated: Mapping[str, float]

    def gain(self, label: str, over: str) -> float:
        """Returns the measured throughput of one variant divided by that of another."""
        return self.measured[label] / self.measured[over]


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    title = "Throughput against bandwidth"
    rates = QUICK if options.quick else FULL
    jobs = [TimingJob(net.name, net.batch, VARIANTS) for net in NETS]
    curves: dict[str, list[Point]] = {net.name: [] for net in NETS}
    try:
        for done, rate in enumerate(rates):
            options.report(f"four networks at {rate}", done / len(rates))
            short = options.quick or parse_rate(rate) < SLOW
            rounds, steps = (2, 2) if short else (3, 3)
            measurement = measure_in_lab(jobs, ranks=HOSTS, rate=rate, rounds=rounds, steps=steps)
            for net, point in zip(NETS, points(measurement), strict=True):
                curves[net.name].append(point)
    except LabUnavailable as reason:
        return Section(title, skipped=str(reason))
    parts: list[Table | Chart] = [gains(curves)]
    for net in NETS:
        parts += [throughput(net, curves[net.name]), chart(net, curves[net.name])]
    return Section(title, summary(curves), parts)


def points(measurement: LabMeasurement) -> list[Point]:
    """Returns the measured and predicted samples per second, one point for each network."""
    bits = parse_rate(measurement.rate)
    return [
        Point(
            bits,
            {label: job.batch / seconds for label, seconds in job_times.seconds.items()},
            {label: job.batch / seconds for label, seconds in predicted.items()},
        )
        for job, job_times, predicted in zip(
            measurement.jobs, measurement.results, predict(measurement), strict=True
        )
    ]


def largest_gain(curve: Sequence[Point], label: str, over: str) -> tuple[float, float]:
    """Returns the largest gain of variant `label` over variant `over`, and the link rate (bit/s) there."""
    return max((point.gain(label, over), point.bits) for point in curve)


def gains(curves: Mapping[str, Sequence[Point]]) -> Table:
    """Returns a table of each network's largest gains; curves: its points, by name of the network."""
    # Column: name, source of its numbers, digits after the point
    columns = (
        Column("network"), Column("p3 / ps", "measured", 2), Column("at Mbit/s"),
        Column("ps:sliced / ps", "measured", 2), Column("at Mbit/s"),
        Column("p3 / DDP", "measured", 2), Column("at Mbit/s"),
        Column("paper's network"), Column("P3 / baseline", "printed", 2), Column("at"),
        Column("slices / baseline", "printed", 2), Column("at"),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for net in NETS:
        cells: list[Cell] = [net.title]
        for label, over in ((P3, WHOLE), (SLICED, WHOLE), (P3, DDP_LABEL)):
            gain, bits = largest_gain(curves[net.name], label, over)
            cells += [gain, round(bits / 1e6)]
        printed = net.printed
        cells += [printed.model, printed.p3, printed.p3_at or None]
        rows.append([*cells, printed.sliced, printed.sliced_at or None])
    return Table(
        "The largest gain of each network over its rates", columns, rows,
        "Throughput divided by throughput. A dash: no figure of the paper is known here.",
    )  # fmt: skip


def throughput(net: NetCase, curve: Sequence[Point]) -> Table:
    """Returns a table of the samples per second of one network, by link rate and variant."""
    columns = [Column("Mbit/s")]
    columns += [Column(label, "measured") for label in VARIANTS]
    columns += [Column(f"{label}, predicted", "simulated") for label in VARIANTS]
    columns += [Column("p3 / ps", "measured", 2), Column("p3 / DDP", "measured", 2)]
    rows: list[list[Cell]] = [
        [
            round(point.bits / 1e6),
            *(point.measured[label] for label in VARIANTS),
            *(point.simulated[label] for label in VARIANTS),
            point.gain(P3, WHOLE),
            point.gain(P3, DDP_LABEL),
        ]
        for point in curve
    ]
    note = (
        f"Samples a second, batch {net.batch} over {HOSTS} hosts. Predictions are simulated with the "
        "measured speed of the link. The times of operators were measured while the link carried as much "
        "traffic as in a step, so they include what each byte costs the cores; what each message costs "
        "them is added."
    )
    return Table(f"{net.title}: samples a second", columns, rows, note)


def chart(net: NetCase, curve: Sequence[Point]) -> Chart:
    """Returns a chart of the samples per second of one network over the link's rate."""
    lines = []
    for label in VARIANTS:
        lines.append(Line(label, [(p.bits / 1e6, p.measured[label]) for p in curve], "measured"))
    for label in (WHOLE, P3):
        predicted = [(p.bits / 1e6, p.simulated[label]) for p in curve]
        lines.append(Line(f"{label}, predicted", predicted, "simulated"))
    return Chart(f"{net.title} over the bandwidth", "Mbit/s", "samples/s", lines, log_x=True)


def summary(curves: Mapping[str, Sequence[Point]]) -> str:
    """Returns a summary in sentences, computed from the points."""
    sentences = []
    for net in NETS:
        curve = curves[net.name]
        (gain, bits), (gain_over_ddp, ddp_bits) = (
            largest_gain(curve, P3, WHOLE),
            largest_gain(curve, P3, DDP_LABEL),
        )
        printed = net.printed.p3
        paper_text = f" ({net.printed.model} in the paper: {printed:.2f})" if printed else ""
        sentences.append(
            f"{net.title}: P3 is at most {gain:.2f} x servers of whole parameters, at {_mbit(bits)}"
            f"{paper_text}, and at most {gain_over_ddp:.2f} x DDP, at {_mbit(ddp_bits)}."
        )
    all_points = [point for curve in curves.values() for point in curve]
    lost = sum(point.gain(P3, DDP_LABEL) < 1 for point in all_points)
    errors = sorted(
        abs(point.simulated[label] / point.measured[label] - 1)
        for point in all_points
        for label in VARIANTS
    )
    near = sum(error <= 0.15 for error in errors)
    sentences.append(
        f"P3 is slower than DDP at {lost} of {len(all_points)} points. Of {len(errors)} predictions {near} "
        f"are within 15 %; half are within {errors[len(errors) // 2]:.0%}, the worst is off by "
        f"{errors[-1]:.0%}."
    )
    return "\n\n".join(sentences)


def _mbit(bits: float) -> str:
    """Returns a rate in bit/s as text, such as "500 Mbit/s"."""
    return f"{bits / 1e6:.0f} Mbit/s"
