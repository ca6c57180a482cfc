"""Compares the stages that raddle and PipeDream's optimizer find for PipeDream's profiles; see README.md.

A profile has the times and sizes of a model's layers; both programs assign the layers to pipeline stages.

python bench/partition/run.py                          (ours: ten seconds; theirs as recorded)
python bench/partition/run.py --pipedream CHECKOUT     (theirs too: five minutes)
python bench/partition/run.py --table                  (prints what results.json holds)
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from raddle.searches.pipeline.layers import DeviceChain, LayerCosts, Layers
from raddle.searches.pipeline.pipedream_profiles import read_profile
from raddle.searches.pipeline.shortest_period import partition_for_period
from raddle.searches.pipeline.shortest_step import partition_for_step

HERE = Path(__file__).resolve().parent
PROFILES = HERE.parents[2] / "shared" / "data" / "pipedream"
NAMES = ("alexnet", "vgg16", "resnet50", "gnmt", "densenet121", "inception_v3")
DEVICES = (4, 16)
BANDWIDTH = 1e9  # bytes a second
PATIENCE = 60  # seconds that PipeDream's optimizer may take
T = TypeVar("T")


def best_of(count: int, work: Callable[[], T]) -> tuple[T, float]:
    """Calls `work` several times; returns its result and the seconds of the fastest call."""
    times = []
    for _ in range(count):
        begun = perf_counter()
        result = work()
        times.append(perf_counter() - begun)
    return result, min(times)


def ours(layers: Layers, devices: int) -> dict[str, Any]:
    """Returns what raddle finds for a pipeline without a flush: speedup, stages, and the search's time."""
    partition, seconds = best_of(
        5, lambda: partition_for_period(layers, devices, bandwidth=BANDWIDTH)
    )
    alone = sum(layers.forward) + sum(layers.backward)
    one_order = partition_for_period(layers, devices, bandwidth=BANDWIDTH, max_ideals=1)
    return {
        "speedup": alone / partition.period,
        "one order": alone / one_order.period,
        "seconds": seconds,
        "ideals": partition.ideals,
        "exact": partition.exact,
        "replicas": [stage.replicas for stage in partition.stages],
        "layers": [len(stage.layers) for stage in partition.stages],
    }


def theirs(checkout: Path, path: Path, devices: int) -> dict[str, Any]:
    """Runs PipeDream's optimizer as a program; returns its speedup and replicas, and its seconds.

    An empty module stands in for graphviz, which it imports. seconds: None if it did not finish in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "graphviz.py").write_text("")
        command = [sys.executable, "optimizer_graph_hierarchical.py", "-n", str(devices)]
        command += ["-f", str(path), "-b", str(BANDWIDTH), "--activation_compression_ratio", "1"]
        begun = perf_counter()
        try:
            output = subprocess.run(
                command,
                cwd=checkout / "optimizer",
                env={**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=True,
            ).stdout
        except subprocess.TimeoutExpired:
            return {"seconds": None}
    speedup = re.search(r"increase \(compared to single machine\): (\S+)", output)
    assert speedup
    return {
        "seconds": perf_counter() - begun,
        "speedup": float(speedup[1]),
        "replicas": [int(r) for r in re.findall(r"^\(\d+, \d+\) \S+ (\d+)$", output, re.MULTILINE)],
    }


def flushed(layers: Layers, devices: int) -> dict[str, Any]:
    """Returns what raddle finds for a pipeline with a flush, with 32 micro-batches in a step.

    A micro-batch is 1/32 of the profiled batch; the outputs of layers are saved for the backward.
    """
    m = 32

    def share(column: tuple[float, ...]) -> tuple[float, ...]:
        """Returns the values of a micro-batch from those of the batch."""
        return tuple(x / m for x in column)

    work = LayerCosts(
        (share(layers.forward),),
        (share(layers.backward),),
        share(layers.activation),
        share(layers.activation),
        layers.parameters,
        layers.successors,
    )
    line = DeviceChain.uniform(devices, bandwidth=BANDWIDTH, latency=1e-5, capacity=16e9)
    partition, seconds = best_of(3, lambda: partition_for_step(work, line, microbatches=m))
    assert partition
    return {
        "speedup": (sum(layers.forward) + sum(layers.backward)) / partition.seconds,
        "seconds": seconds,
        "exact": partition.exact,
        "ideals": partition.ideals,
        "replicas": [len(stage.devices) for stage in partition.stages],
    }


def first_use() -> dict[str, float]:
    """Returns the seconds of a process's first calls, without and then with numba's cache."""
    script = """
import sys, time; begun = time.perf_counter()
from raddle.searches.pipeline.layers import DeviceChain, LayerCosts, Layers
from raddle.searches.pipeline.shortest_period import partition_for_period
from raddle.searches.pipeline.shortest_step import partition_for_step
row = (1.0, 1.0); one = time.perf_counter()
partition_for_period(Layers(row, row, row, row, ((1,), ())), 2, bandwidth=1.0); two = time.perf_counter()
costs = LayerCosts((row,), (row,), row, row, row, ((1,), ()))
partition_for_step(costs, DeviceChain.uniform(2, bandwidth=1.0), microbatches=2)
print(one - begun, two - one, time.perf_counter() - two)"""
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            subprocess.run(
                [sys.executable, "-c", script],
                env={**os.environ, "NUMBA_CACHE_DIR": folder},
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
            for _ in range(2)
        ]
    parts = ("import", "partition", "stages_for")
    return {
        f"{part}, {kind}": float(x)
        for kind, run in zip(("cold", "cached"), runs, strict=True)
        for part, x in zip(parts, run, strict=True)
    }


def tables(results: dict[str, Any]) -> str:
    """Returns the results as Markdown tables."""
    head = "profile|devices|ours, × one device|cuts of one order only|PipeDream's|ours, s|PipeDream's, s"
    rows = [[*head.split("|"), "ideals", "our replicas, by stage", "PipeDream's "]]
    steps = [["profile", "devices", "× one device", "s", "ideals", "exact", "replicas, by stage"]]
    for row in results["rows"]:
        result, other, step = row["ours"], row["pipedream"], row["flushed"]
        theirs = ["–", f"did not finish in {PATIENCE} s", "–"]
        if other["seconds"] is not None:
            theirs = [f"{other['speedup']:.2f}", f"{other['seconds']:.1f}", plus(other["replicas"])]
        case = [row["profile"], str(row["devices"])]
        reached = [f"**{result['speedup']:.2f}**", f"{result['one order']:.2f}", theirs[0]]
        took = [f"{result['seconds']:.3f}", theirs[1]]
        rows.append(
            [*case, *reached, *took, f"{result['ideals']:,}", plus(result["replicas"]), theirs[2]]
        )
        cells = [f"{step['speedup']:.2f}", f"{step['seconds']:.3f}", f"{step['ideals']:,}"]
        steps.append([*case, *cells, "yes" if step["exact"] else "no", plus(step["replicas"])])
    first = [f"{what}: {seconds:.1f} s" for what, seconds in results["first use"].items()]
    return "\n\n".join([markdown(rows), markdown(steps), "; ".join(first)])


def plus(replicas: list[int]) -> str:
    """Returns the replicas of each stage, such as "2 + 1 + 1"."""
    return " + ".join(str(r) for r in replicas)


def markdown(rows: list[list[str]]) -> str:
    """Returns a Markdown table; the first row is its head."""
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Compares all profiles on all numbers of devices, and writes results.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profiles", type=Path, default=PROFILES)
    parser.add_argument("--pipedream", type=Path, help="a checkout of msr-fiddle/pipedream")
    parser.add_argument("--table", action="store_true", help="print what results.json holds")
    given = parser.parse_args()
    path = HERE / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    if given.table:
        print(tables(results))
        return
    recorded = {
        (row["profile"], row["devices"]): row["pipedream"] for row in results.get("rows", [])
    }
    rows = []
    for name in NAMES:
        profile = given.profiles / f"{name}.txt"
        layers = read_profile(profile.read_text())
        for devices in DEVICES:
            row = {"profile": name, "devices": devices, "ours": ours(layers, devices)}
            row["flushed"] = flushed(layers, devices)
            if given.pipedream:
                row["pipedream"] = theirs(given.pipedream, profile, devices)
            else:
                row["pipedream"] = recorded[name, devices]
            if row["pipedream"]["seconds"] is not None:
                assert row["ours"]["speedup"] >= row["pipedream"]["speedup"] * (1 - 1e-11)
            assert row["ours"]["seconds"] < 2
            print(json.dumps(row), flush=True)
            rows.append(row)
    results = {"bandwidth": BANDWIDTH, "first use": first_use(), "rows": rows}
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
