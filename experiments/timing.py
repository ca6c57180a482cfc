"""Measures the step time of plans on ranks of this machine. All plans run in turn, in blocks of steps.

    times = time_plans("alexnet", graph, {"ddp": DdpBaseline(), "owt": plan}, ranks=4, rate="1gbit")
    times["owt"].seconds

With a rate, each rank runs on a host of the lab behind a link of that rate; without, the ranks are plain
processes of this machine. Every rank has one thread.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from raddle.api.lab import Lab, launch, torchrun_commands
from raddle.api.models import Graph
from raddle.api.plans import Plan, save_plan
from raddle.api.transports import starter_env
from raddle.errors import InputError
from raddle.files import read_scratch, write_scratch

TIMEOUT = 1800.0  # seconds until all ranks must have ended
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class DdpBaseline(NamedTuple):
    """torch's DistributedDataParallel, measured next to the plans."""

    bucket_mb: float | None = None  # None: torch's default, 25 MiB and a first bucket of 1 MiB


class StepTimes(NamedTuple):
    """Measured times of one plan, or of DDP."""

    seconds: float  # of a step, on the slowest rank: the median over blocks
    shortest: float  # seconds of a step in the fastest block
    longest: float  # in the slowest block
    losses: Sequence[float]  # of the first two steps, which warm up
    peaks: Sequence[int]  # peak bytes by rank (timing_rank.py); empty unless requested


def time_plans(
    spec: str,
    graph: Graph,
    plans: Mapping[str, Plan | DdpBaseline],
    *,
    ranks: int,
    rate: str | None = None,
    rounds: int = 5,
    steps: int = 2,
    peaks: bool = False,
) -> dict[str, StepTimes]:
    """Measures plans by label; InputError if `rate` is given and this machine cannot run a lab.

    spec: the model, as a name of the zoo or file.py:function; it is run at the batch of the graph. rate: of
    each host's link in the lab. rounds: blocks of each plan; steps: of a block; peaks: measure peak memory
    too.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # label -> file of a plan; for DDP: megabytes of a bucket
        kinds: dict[str, float | str | None] = {}
        for number, (label, plan) in enumerate(plans.items()):
            if isinstance(plan, DdpBaseline):
                kinds[label] = plan.bucket_mb
            else:
                kinds[label] = str(folder / f"{number}.json")
                # a plan's tiles are of a micro-batch
                micro_batch_graph = graph.for_batch(-(-graph.batch // plan.microbatches))
                save_plan(plan, micro_batch_graph, folder / f"{number}.json")
        request = {
            "spec": spec, "batch": graph.batch, "kinds": kinds, "rounds": rounds, "steps": steps,
            "peaks": peaks, "out": str(folder / "result.json"),
        }  # fmt: skip
        write_scratch(folder / "request.json", request)
        run_ranks(ranks, rate, ["-m", "experiments.timing_rank", str(folder / "request.json")])
        result = read_scratch(folder / "result.json")
    return {label: StepTimes(**times) for label, times in result.items()}


def run_ranks(ranks: int, rate: str | None, argv: Sequence[str]) -> None:
    """Runs a script on `ranks` ranks until it ends; in a lab if `rate` is given. argv: as for torchrun."""
    if rate is not None:
        with Lab.up(hosts=ranks, rate=rate, name="reproduce") as lab:
            # number of a host -> its torchrun command
            launch(lab, torchrun_commands(lab, argv).__getitem__, TIMEOUT, env=THREADS)
        return
    import os

    torchrun_args = ["--standalone", "--nproc-per-node", str(ranks), *argv]
    # starter_env: variables that let the ranks end when this process ends
    finished = subprocess.run(
        [sys.executable, "-m", "raddle.transport.torchrun", *torchrun_args],
        env={**os.environ, **THREADS, **starter_env()}, capture_output=True, text=True, timeout=TIMEOUT,
        check=False,
    )  # fmt: skip
    if finished.returncode:
        output = _traceback(finished.stderr)
        print(output, file=sys.stderr, flush=True)
        last = (output.strip().splitlines() or ["they printed no error"])[-1]
        raise InputError(f"{ranks} ranks of this machine failed: {last}")


def _traceback(output: str) -> str:
    """Returns the rank's own traceback, without torchrun's report after it."""
    start = output.find("Traceback")
    return output[start : start + 4000] if start >= 0 else output[-2000:]
