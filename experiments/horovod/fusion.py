"""Measures steps with and without tensor fusion, for networks of many small tensors (paper, section 7).

This is the part `fusion` of `raddle reproduce horovod`. The paper is "Horovod" (Sergeev and Del Balso,
arXiv 1802.05799).

*Fused*: gradients are all-reduced together, in buckets. *Unfused*: each tensor is all-reduced by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from experiments import nets
from experiments.experiment import RunOptions
from experiments.links import LabUnavailable
from experiments.sync_timing import DDP, SyncVariant, TimingJob, measure_in_lab, predict
from raddle.api.results import Cell, Column, Section, Table

QUICK = ((2, "1gbit"),)
FULL = ((2, "250mbit"), (2, "1gbit"), (4, "1gbit"))  # number of hosts, rate of their links
PER_RANK = {"resnet50": 8, "inception": 4}  # samples of a rank
TITLES = {"resnet50": "ResNet-50-like", "inception": "Inception-like"}
PRINTED = 1.65  # largest gain in throughput by fusion: section 7

# Who runs the step and its all-reduces -> (with fusion, each tensor by itself).
# The runners of a SyncVariant (sync_timing.py): "ddp" is torch's DDP, "plan" a data-parallel plan of
# raddle, "wrapped" a plain torch loop whose optimizer is wrapped in raddle.sync.Optimizer, as Horovod does
# it. bucket=0 turns fusion off.
PAIRS = {
    "DDP": (DDP, SyncVariant("ddp", bucket=0)),
    "plan": (SyncVariant("plan"), SyncVariant("plan", bucket=0)),
    "raddle.sync": (SyncVariant("wrapped"), SyncVariant("wrapped", bucket=0)),
}


class FusionTimes(NamedTuple):
    """Seconds of a step with fusion and without."""

    net: str
    hosts: int
    rate: str  # of each host's link, such as "1gbit"
    runner: str  # key of PAIRS
    fused: float  # measured
    unfused: float  # measured
    fused_predicted: float
    unfused_predicted: float

    @property
    def gain(self) -> float:
        """The factor by which fusion shortens the measured step; above 1: fusion is faster."""
        return self.unfused / self.fused


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    title = "Fusion on and off"
    places = QUICK if options.quick else FULL
    times: list[FusionTimes] = []
    try:
        for done, (hosts, rate) in enumerate(places):
            options.report(f"{hosts} hosts at {rate}", done / len(places))
            times += measure_fusion(hosts, rate, quick=options.quick)
    except LabUnavailable as reason:
        return Section(title, skipped=str(reason))
    return Section(title, summary(times), [table(times)])


def measure_fusion(hosts: int, rate: str, *, quick: bool) -> list[FusionTimes]:
    """Measures and predicts all networks and runners on hosts of the lab."""
    variants = {}
    for runner, (fused, unfused) in PAIRS.items():
        variants[f"{runner}, fused"], variants[f"{runner}, unfused"] = fused, unfused
    jobs = [TimingJob(net, hosts * samples, variants) for net, samples in PER_RANK.items()]
    rounds, steps = (2, 3) if quick else (3, 4)
    measurement = measure_in_lab(jobs, ranks=hosts, rate=rate, rounds=rounds, steps=steps)
    rows = []
    for job, job_times, predicted in zip(
        jobs, measurement.results, predict(measurement), strict=True
    ):
        for runner in PAIRS:
            labels = (f"{runner}, fused", f"{runner}, unfused")
            seconds = [job_times.seconds[label] for label in labels]
            rows.append(
                FusionTimes(
                    job.net, hosts, rate, runner, *seconds, *(predicted[label] for label in labels)
                )
            )
    return rows


def table(times: Sequence[FusionTimes]) -> Table:
    """Returns a table of the step times with and without fusion."""
    # Column: name, source of its numbers ("counted": from a plan alone), digits after the point
    columns = (
        Column("network"), Column("tensors", "counted"), Column("hosts"), Column("rate"),
        Column("by"), Column("fused, ms", "measured"), Column("predicted", "simulated"),
        Column("unfused, ms", "measured"), Column("predicted", "simulated"),
        Column("gain", "measured", 2), Column("predicted", "simulated", 2),
        Column("at most", "printed", 2),
    )  # fmt: skip
    rows: list[list[Cell]] = [
        [
            TITLES[pair.net], len(nets.parameter_sizes(nets.build_on_meta(pair.net))), pair.hosts,
            pair.rate, pair.runner,
            1e3 * pair.fused, 1e3 * pair.fused_predicted, 1e3 * pair.unfused, 1e3 * pair.unfused_predicted,
            pair.gain, pair.unfused_predicted / pair.fused_predicted, PRINTED,
        ]
        for pair in times
    ]  # fmt: skip
    note = (
        "Milliseconds a step, and the factor by which it is longer where each tensor is all-reduced by "
        "itself. Fused: buckets of 25 MiB (DDP) or 16 MiB; Horovod's have 64 MiB, and its gain is on a "
        "different network. Predictions use the latency of a small all-reduce, measured while the cores "
        "were idle; while they compute, as in a step, it is longer."
    )
    return Table("Steps with fusion and without", columns, rows, note)


def summary(times: Sequence[FusionTimes]) -> str:
    """Returns sentences about the largest and the smallest gain of fusion."""
    most = max(times, key=lambda pair: pair.gain)
    least = min(times, key=lambda pair: pair.gain)
    hurt = sum(pair.gain < 1 for pair in times)
    return (
        f"Fused steps are at most {most.gain:.2f} x as fast ({most.runner}, {TITLES[most.net]}, "
        f"{most.hosts} "
        f"hosts at {most.rate}) and at least {least.gain:.2f} x ({least.runner}, {TITLES[least.net]}, "
        f"{least.hosts} hosts at {least.rate}); they are slower in {hurt} of {len(times)} cases. The paper "
        f"prints up to {PRINTED:.2f} x. By itself, a gradient is sent as soon as it is ready, and costs a "
        "message; a bucket is sent when it is full."
    )
