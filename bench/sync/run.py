"""Measures synchronisation in the lab: P3, servers and all-reduce beside DistributedDataParallel.

The hosts are network namespaces of this machine (`raddle lab`); root and iproute2 are needed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import tempfile
from dataclasses import replace
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))  # the experiments

from models import task

from experiments.links import lab_cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.lab import Lab, launch
from raddle.lab.rates import parse_rate
from raddle.lab.torchrun import torchrun_commands
from raddle.program.lower import lower
from raddle.searches.planning import plan_for
from raddle.simulation.timeline import simulate

HERE = pathlib.Path(__file__).parent
RATES = "100mbit,250mbit,500mbit,1gbit,2gbit,4gbit,20gbit"
KINDS = "ddp;allreduce;ps:sliced,greedy;ps;p3"


def main() -> None:
    """Measure each rate of the links; print a table for each, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vgg19", choices=("vgg19", "resnet50", "alexnet"))
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16, help="global")
    parser.add_argument("--method", default="data", help="of the plan: data, owt, optcnn, ...")
    parser.add_argument("--rates", default=RATES)
    parser.add_argument("--kinds", default=KINDS, help="apart by ;")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of a block")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("-o", "--out", help="the rows as JSON, for plot.py")
    chosen = parser.parse_args()
    kinds = chosen.kinds.split(";")
    rows = []
    for rate in chosen.rates.split(","):
        row = at_rate(chosen, rate, kinds)
        rows.append(row)
        if not chosen.json:
            show(row, kinds)
    if chosen.out:
        pathlib.Path(chosen.out).write_text(json.dumps(rows, indent=1))
    if chosen.json:
        print(json.dumps(rows, indent=1))


def at_rate(chosen: argparse.Namespace, rate: str, kinds: list[str]) -> dict[str, Any]:
    """Return measured and predicted times of all sync kinds at one rate of the links."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "measured.json"
        request = {
            "model": chosen.model, "batch": chosen.batch, "kinds": kinds, "rounds": chosen.rounds,
            "steps": chosen.steps, "method": chosen.method, "out": str(out),
            "bytes_per_s": parse_rate(rate) / 8,
        }  # fmt: skip
        try:
            with Lab.up(hosts=chosen.hosts, rate=rate, name="bench-sync") as lab:
                argv = [str(HERE / "rank.py"), json.dumps(request)]
                launch(lab, torchrun_commands(lab, argv).__getitem__, 1500)  # seconds
        except InputError as error:
            print(f"skipped: {error}")
            sys.exit(0)
        result = json.loads(out.read_text())
    result["bytes_per_s"] = request["bytes_per_s"]
    result["predicted"] = predicted(chosen, kinds, result)
    del result["profile"]
    return {
        "model": chosen.model, "hosts": chosen.hosts, "batch": chosen.batch, "rate": rate, **result,
    }  # fmt: skip


def predicted(
    chosen: argparse.Namespace, kinds: list[str], measured: dict[str, Any]
) -> dict[str, float]:
    """Return the simulated seconds of a step by sync kind, with the measured operators and link."""
    given = task(chosen.model, chosen.batch)
    graph = capture(given.model, given.batch, given.loss)
    on = lab_cluster(chosen.hosts, **measured["link"])
    planned = lab_cluster(chosen.hosts, measured["bytes_per_s"])
    seconds_by_kind = {}
    for kind in kinds:
        sync, method = ("allreduce", "data") if kind == "ddp" else (kind, chosen.method)
        plan = plan_for(
            graph, planned, method, bn="local", sync="allreduce" if kind == "auto" else sync,
            optimizer="momentum",
        )  # fmt: skip
        if kind == "auto":
            plan = replace(plan, sync=measured["auto"][0], bucket=measured["auto"][1])
        timeline = simulate(lower(graph, replace(plan, steps=4)), on, Profile(measured["profile"]))
        seconds_by_kind[kind] = timeline.step_seconds
    return seconds_by_kind


def show(row: dict[str, Any], kinds: list[str]) -> None:
    """Print the result at one rate."""
    seconds, predicted_seconds = row["seconds"], row["predicted"]
    busy, wire = seconds["compute beside traffic"], seconds.get("communication", 0.0)
    link = row["link"]
    print(
        f"\n{row['model']}, {row['hosts']} hosts at {row['rate']}: {link['bandwidth'] / 1e6:.0f} MB/s, "
        f"{1e3 * link['latency']:.2f} ms"
    )
    print(
        f"  compute {1e3 * seconds['compute']:.0f} ms, beside traffic {1e3 * busy:.0f}; communication "
        f"{1e3 * wire:.0f}; overtaken {row['overtaken']}"
    )
    if row["auto"]:
        print(f"  auto: {row['auto'][0]}, buckets of {row['auto'][1] / 2**20:g} MiB")
    print(f"  {'':32}      ms  predicted        over bound   x DDP   busiest server / average")
    for kind in kinds:
        taken = seconds[kind]
        print(
            f"  {kind:32} {1e3 * taken:7.0f} {1e3 * predicted_seconds[kind]:10.0f} "
            f"{predicted_seconds[kind] / taken - 1:+6.0%} "
            f"{taken / max(busy, wire) - 1:+10.0%} {seconds.get('ddp', taken) / taken:8.2f} "
            f"{row['loads'].get(kind, 1.0):8.2f}"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
