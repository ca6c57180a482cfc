"""Measures kinds of parameter synchronisation in a lab, and predicts the same steps by simulation.

    measurement = measure_in_lab([TimingJob("vgg19", 20, variants)], ranks=2, rate="1gbit", ...)
    measurement.results[0].seconds["p3"], predict(measurement)[0]["p3"]

A *variant* is one way to train; a *block* is some steps of one variant, one after the other. Variants take
turns block by block.

timing.py only times plans; here the same run also measures the link and the operators, from which steps are
predicted. Operators are measured while the link carries as much traffic as in a training step.
"""

# on: the cluster that plans are made for

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
RANK = "experiments.sync_timing_rank"  # the module that every rank runs


@dataclass(frozen=True)
class SyncVariant:
    """A way to train that is measured: who runs the step, and how parameters are synchronised."""

    # plan, ddp (torch's), wrapped (raddle.sync.Optimizer) or alone (no synchronisation)
    runner: str
    sync: str = "allreduce"  # sync kind of a plan or of raddle.sync; ddp has its own all-reduce
    bucket: int = DEFAULT_BUCKET  # bytes of an all-reduce bucket; 0: each tensor by itself


DDP = SyncVariant("ddp", bucket=25 * MIB)  # torch's default
NO_SYNC = SyncVariant("alone")


@dataclass(frozen=True)
class TimingJob:
    """A network of nets.py, its global batch, and the variants to measure, by label."""

    net: str
    batch: int
    variants: Mapping[str, SyncVariant]


@dataclass(frozen=True)
class JobTimes:
    """Measured times of one job. blocks: label -> seconds per step of the slowest rank, by block."""

    blocks: Mapping[str, Sequence[float]]
    # label, begin, end (perf_counter) of each block
    windows: Sequence[tuple[str, float, float]] = ()
    # seconds of operators, as in a Profile
    profile: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of a step by label: the median over blocks."""
        return {
            label: statistics.median(seconds_of_blocks)
            for label, seconds_of_blocks in self.blocks.items()
        }


@dataclass(frozen=True)
class LabMeasurement:
    """The measurements of `measure_in_lab`: the link, and for each job its times (`results`)."""

    ranks: int
    rate: str  # of each host's link, such as "1gbit"
    # bandwidth (bytes/s), latency (s), sum (latency of an all-reduce message, s), and
    # host_overhead (seconds that communication takes from the core, by cause: "message", "byte", ...)
    link: Mapping[str, Any]
    jobs: Sequence[TimingJob]
    results: Sequence[JobTimes]
    samples: Sequence[counters.Sample] = ()  # byte counters of host 0's interface over time


def measure_in_lab(
    jobs: Sequence[TimingJob],
    *,
    ranks: int,
    rate: str,
    rounds: int,
    steps: int,
    with_counters: bool = False,
) -> LabMeasurement:
    """Runs all jobs on hosts of a lab; LabUnavailable if this machine cannot run one.

    rate: of each host's link; rounds: blocks of each variant; steps: of a block; with_counters: also
    sample the byte counters of host 0's interface.
    """
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
            # number of a host -> its torchrun command
            launch(lab, torchrun_commands(lab, argv).__getitem__, TIMEOUT, env=THREADS)
        reply = read_scratch(folder / "result.json")
        samples = counters.read_samples(folder / "samples") if with_counters else []
    results = [JobTimes(**job) for job in reply["jobs"]]
    return LabMeasurement(ranks, rate, reply["link"], jobs, results, samples)


def predict(measurement: LabMeasurement) -> list[dict[str, float]]:
    """Returns the predicted seconds of a step by job and label, from the measured operators and link.

    All-reduces have gloo's latency; other messages have that of raddle's own connections. Operators were
    measured while a step's traffic was sent. So their times already include what each byte costs the core
    ("byte" is 0 here), but not what each message costs.
    """
    link, result = measurement.link, []
    host_overhead = {**link["host_overhead"], "byte": 0.0} if link["host_overhead"] else {}
    for job, job_times in zip(measurement.jobs, measurement.results, strict=True):
        seconds = {}
        for label, variant in job.variants.items():
            if variant.runner != "alone":
                program = _program(job.net, job.batch, variant, measurement.ranks)
                latency = link["sum" if variant.sync.startswith("allreduce") else "latency"]
                on = lab_cluster(measurement.ranks, link["bandwidth"], latency, host_overhead)
                seconds[label] = simulate(program, on, Profile(job_times.profile)).step_seconds
        result.append(seconds)
    return result


def data_parallel_plan(graph: Graph, ranks: int, variant: SyncVariant) -> Plan:
    """Returns the data-parallel plan of a variant; for torch's DDP the plan that does the same.

    Its tiles do not depend on the bandwidth (here 1e8 bytes/s). Batch norm is local, as with DDP. The
    optimizer is that of the ranks, `sgd` of timing_rank.py.
    """
    plan = plan_for(
        graph, lab_cluster(ranks, 1e8), "data", bn="local", sync=variant.sync, optimizer="momentum"
    )
    return replace(plan, bucket=variant.bucket)


@lru_cache(maxsize=64)
def _program(net: str, batch: int, variant: SyncVariant, ranks: int) -> Program:
    graph = _graph(net, batch)
    # STEPS steps are simulated one after the other; the last one is timed
    return lower(graph, replace(data_parallel_plan(graph, ranks, variant), steps=STEPS))


@lru_cache(maxsize=16)
def _graph(net: str, batch: int) -> Graph:
    return capture_model(nets.spec(net), batch)


def job_from_dict(data: Mapping[str, Any]) -> TimingJob:
    """Returns the TimingJob that `measure_in_lab` wrote into the request file."""
    variants = {label: SyncVariant(**variant) for label, variant in data["variants"].items()}
    return TimingJob(data["net"], data["batch"], variants)
