"""Ways to synchronise, measured in a lab and predicted for it: `timing` for what agrees on parameters.

    found = measure([Job("vgg19", 20, kinds)], ranks=2, rate="1gbit")
    found.jobs[0].seconds["p3"], predict(found)[0]["p3"]

Differs from `timing`: a block's first step is not counted, because with P3 it has nothing to wait for; the
link and the operators (beside a step's traffic) are measured in the same run, which predictions need.
"""

from __future__ import annotations

import pathlib
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from experiments import counters, nets
from experiments.links import lab_cluster, start_lab
from experiments.timing import THREADS, TIMEOUT
from raddle.api.costs import Profile
from raddle.api.lab import launch, torchrun_commands
from raddle.api.loading import capture_model
from raddle.api.models import Graph
from raddle.api.planning import plan_for
from raddle.api.plans import DEFAULT_BUCKET, Plan
from raddle.api.programs import Program, lower
from raddle.api.simulating import STEPS, simulate
from raddle.files import read_scratch, write_scratch

MIB = 2**20
RANK = "experiments.sync_timing_rank"


@dataclass(frozen=True)
class SyncVariant:
    """`how`: a plan, torch's DistributedDataParallel, raddle.sync's wrapper, or nothing at all."""

    runner: str  # plan, ddp, wrapped or alone
    sync: str = "allreduce"
    bucket: int = DEFAULT_BUCKET  # bytes that are summed at once; 0: each tensor by itself


DDP = SyncVariant("ddp", bucket=25 * MIB)  # as torch has it by itself
NO_SYNC = SyncVariant("alone")


@dataclass(frozen=True)
class TimingJob:
    """One network of `nets`, its global batch, and what is measured of it, by label."""

    net: str
    batch: int
    variants: Mapping[str, SyncVariant]


@dataclass(frozen=True)
class JobTimes:
    """Of a job, by label: seconds of a step in each block, of the slowest rank; and when that was."""

    blocks: Mapping[str, Sequence[float]]
    windows: Sequence[tuple[str, float, float]] = ()  # label, begin, end
    profile: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> dict[str, float]:
        return {
            label: statistics.median(seconds_of_blocks)
            for label, seconds_of_blocks in self.blocks.items()
        }


@dataclass(frozen=True)
class LabMeasurement:
    ranks: int
    rate: str
    # bandwidth in bytes/s; in seconds latency, that of a `sum`, and what a message takes (`host_overhead`)
    link: Mapping[str, Any]
    jobs: Sequence[TimingJob]
    results: Sequence[JobTimes]
    samples: Sequence[counters.Sample] = ()


def measure_in_lab(
    jobs: Sequence[TimingJob],
    *,
    ranks: int,
    rate: str,
    rounds: int,
    steps: int,
    with_counters: bool = False,
) -> LabMeasurement:
    """All jobs in one run on hosts of the lab; NoLab where there can be none."""
    with ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        request = {
            "jobs": [asdict(job) for job in jobs], "rounds": rounds, "steps": steps,
            "out": str(folder / "result.json"),
        }  # fmt: skip
        write_scratch(folder / "request.json", request)
        lab = stack.enter_context(start_lab(ranks, rate))
        with ExitStack() as inner:
            if with_counters:
                inner.enter_context(counters.sample_counters(lab, 0, folder / "samples"))
            argv = ["-m", RANK, str(folder / "request.json")]
            launch(lab, torchrun_commands(lab, argv).__getitem__, TIMEOUT, env=THREADS)
        reply = read_scratch(folder / "result.json")
        samples = counters.read_samples(folder / "samples") if with_counters else []
    results = [JobTimes(**job) for job in reply["jobs"]]
    return LabMeasurement(ranks, rate, reply["link"], jobs, results, samples)


def predict(measurement: LabMeasurement) -> list[dict[str, float]]:
    """Seconds of a step by job and label, from the operators and the link as they were measured.

    Sums have the latency of gloo's, all else that of the lines that slices travel on. Operators were
    measured beside a step's bytes, which therefore take nothing more from a core; messages do.
    """
    link, result = measurement.link, []
    host_overhead = {**link["host_overhead"], "byte": 0.0} if link["host_overhead"] else {}
    for job, job_times in zip(measurement.jobs, measurement.results, strict=True):
        seconds = {}
        for label, kind in job.variants.items():
            if kind.runner != "alone":
                program = _program(job.net, job.batch, kind, measurement.ranks)
                late = link["sum" if kind.sync.startswith("allreduce") else "latency"]
                on = lab_cluster(measurement.ranks, link["bandwidth"], late, host_overhead)
                seconds[label] = simulate(program, on, Profile(job_times.profile)).step_seconds
        result.append(seconds)
    return result


def data_parallel_plan(graph: Graph, ranks: int, kind: SyncVariant) -> Plan:
    """Data parallelism, its parameters synchronised so; for DistributedDataParallel what is the same."""
    plan = plan_for(graph, lab_cluster(ranks, 1e8), "data", bn="local", sync=kind.sync)
    return replace(plan, bucket=kind.bucket)


@lru_cache(maxsize=64)
def _program(net: str, batch: int, kind: SyncVariant, ranks: int) -> Program:
    graph = _graph(net, batch)
    return lower(graph, replace(data_parallel_plan(graph, ranks, kind), steps=STEPS))


@lru_cache(maxsize=16)
def _graph(net: str, batch: int) -> Graph:
    return capture_model(nets.spec(net), batch)


def job_from_dict(data: Mapping[str, Any]) -> TimingJob:
    """What `measure` wrote for its ranks."""
    kinds = {label: SyncVariant(**kind) for label, kind in data["kinds"].items()}
    return TimingJob(data["net"], data["batch"], kinds)
