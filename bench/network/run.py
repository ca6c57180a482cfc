"""Compares OWT ("one weird trick") with DDP for AlexNet on four hosts at 1 Gbit/s, predicted and measured.

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

import torch

from raddle import zoo
from raddle.clusters import Cluster, cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.lab import Lab, launch
from raddle.lab.torchrun import torchrun_commands
from raddle.plans.plan_file import save
from raddle.probe import describe, probe
from raddle.program.lower import lower
from raddle.searches.planning import plan_for
from raddle.simulation.timeline import simulate

HERE = pathlib.Path(__file__).parent
HOSTS = 4


def main() -> None:
    """Measure in the lab, predict, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="16,32,64")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    batches = [int(b) for b in chosen.batches.split(",")]
    measured = probe(HOSTS, quick=False, fresh=True)
    with tempfile.TemporaryDirectory() as folder:
        graphs = {b: captured(b) for b in batches}
        for batch, graph in graphs.items():
            plan = plan_for(graph, cluster(f"local:{HOSTS}"), "owt", model="alexnet")
            save(plan, graph, pathlib.Path(folder) / f"owt.{batch}.json")
        try:
            with Lab.up(hosts=HOSTS, rate=chosen.rate, name="bench") as lab:
                argv = [str(HERE / "rank.py"), folder, chosen.batches, str(chosen.rounds)]
                launch(lab, torchrun_commands(lab, argv).__getitem__, 1500)
        except InputError as error:
            print(f"skipped: {error}")
            sys.exit(0)
        measurement = json.loads((pathlib.Path(folder) / "rows.json").read_text())
    rows = [
        row | predicted(graphs[row["batch"]], measured, measurement["link"])
        for row in measurement["rows"]
    ]
    if chosen.json:
        print(json.dumps({**measurement, "rows": rows}, indent=1))
        return
    link = measurement["link"]
    print(f"link: {link['bandwidth'] / 1e6:.1f} MB/s, {1e3 * link['latency']:.2f} ms\n")
    print("batch   DDP ms   owt ms  faster   predicted: data ms   owt ms  faster    off")
    for r in rows:
        off = r["predicted_faster"] / r["faster"] - 1
        print(
            f"{r['batch']:5} {r['ddp_ms']:8.0f} {r['owt_ms']:8.0f} {r['faster']:6.2f}x  "
            f"{r['predicted_data_ms']:18.0f} {r['predicted_owt_ms']:8.0f} "
            f"{r['predicted_faster']:6.2f}x {off:+6.0%}"
        )


def captured(batch: int) -> Graph:
    """Return the graph of AlexNet without dropout."""
    work = zoo.load("alexnet", batch=batch)
    for module in work.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return capture(work.model, work.batch, work.loss, name="alexnet")


def predicted(graph: Graph, measured: Any, link: dict[str, float]) -> dict[str, float]:
    """Return simulated times of a step on a cluster with the probed devices and the measured link."""
    description = describe(measured)
    kind = next(iter(description["devices"]))
    machine = Cluster.from_dict(
        {
            "name": "lab",
            "devices": description["devices"],
            "nodes": [{"count": HOSTS, "devices": [kind]}],
            "network": {**link, "duplex": True, "per_device": False},
        }
    )
    result = {}
    for method in ("data", "owt"):
        plan = replace(plan_for(graph, machine, method), steps=3)
        result[f"predicted_{method}_ms"] = 1e3 * simulate(lower(graph, plan), machine).step_seconds
    result["predicted_faster"] = result["predicted_data_ms"] / result["predicted_owt_ms"]
    return result


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
