"""Measures the overhead of raddle's pipelines and of torch's, and time and memory of several schedules.

--part overhead: stages that sleep, on two processes. --part gems: real nets by several schedules, measured
and predicted. Results are saved in results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
from typing import Any

import harness
import nets
import torch

from raddle.clusters import Cluster
from raddle.plans.plan_file import save
from raddle.probe import describe, probe

HERE = pathlib.Path(__file__).parent
RESULTS = HERE / "results.json"
MEGABYTES = (0.1, 4, 32)


def main() -> None:
    """Measures a part, saves its results, and prints them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("overhead", "gems"), default="overhead")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ranks", default="2,4", help="of the nets")
    parser.add_argument("--nets", default=",".join(nets.NETS))
    parser.add_argument("--print", action="store_true", help="show what was measured before")
    chosen = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not chosen.print:
        measured = overhead(chosen.rounds) if chosen.part == "overhead" else gems(chosen)
        results[chosen.part] = {"machine": _machine(), "rows": measured}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    show = {"overhead": show_overhead, "gems": show_gems}[chosen.part]
    show(results[chosen.part]["rows"])


def overhead(rounds: int) -> list[dict[str, Any]]:
    """Measures the overhead of both sides; returns the rows of rank.py."""
    harness.build()  # once, so that the two processes need not build it at the same time
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "rows.json"
        rows = [(schedule, size) for size in MEGABYTES for schedule in ("gpipe", "1f1b")]
        _launch("rank.py", 2, {"rounds": rounds, "rows": rows, "out": str(out)})
        rows_measured: list[dict[str, Any]] = json.loads(out.read_text())
    return rows_measured


def show_overhead(rows: list[dict[str, Any]]) -> None:
    """Prints the rows as Markdown tables."""
    print(
        "| schedule | activation, MB | ideal, ms | raddle, ms | torch, ms | raddle | torch | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for r in rows:
        print(
            f"| {r['schedule']} | {r['megabytes']} | {r['ideal_ms']:.0f} | {r['raddle_ms']:.1f} "
            f"| {r['torch_ms']:.1f} | {r['raddle_overhead']:.1%} | {r['torch_overhead']:.1%} "
            f"| {r['ratio']:.2f} |"
        )
    print("\nraddle's step by what it is spent on, ms (rank 0, rank 1):\n")
    kinds = (
        "AwaitMessage",
        "Send",
        "Forward",
        "Backward",
        "Feed",
        "RecordLoss",
        "UpdateParameters",
        "rest",
    )
    print("| schedule | activation, MB | " + " | ".join(kinds) + " |")
    print("|---|---|" + "---|" * len(kinds))
    for r in rows:
        cells = [", ".join(f"{p.get(k, 0):.1f}" for p in r["profile_ms"]) for k in kinds]
        print(f"| {r['schedule']} | {r['megabytes']} | " + " | ".join(cells) + " |")


def gems(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures and predicts the nets; returns a row for each net and number of ranks."""
    torch.set_num_threads(1)
    rows = []
    names = chosen.nets.split(",")
    probed = Cluster.from_dict(describe(probe(2, quick=False)))
    for ranks in map(int, chosen.ranks.split(",")):
        cluster = _widened(probed, ranks)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            predictions = {net: _plan(net, ranks, cluster, folder) for net in names}
            settings = {"folder": name, "rounds": chosen.rounds, "nets": names}
            _launch("netrank.py", ranks, settings)
            for row in json.loads((folder / "rows.json").read_text()):
                rows.append(row | {"predicted": predictions[row["net"]]})
    return rows


def _widened(probed: Cluster, ranks: int) -> Cluster:
    """Returns a cluster with a device for each rank, each as fast as one of the two that were probed."""
    fields = probed.to_dict()
    kind = next(iter(fields["devices"]))
    (node,) = fields["nodes"]
    return Cluster.from_dict({**fields, "nodes": [{**node, "devices": [kind] * ranks}]})


def _plan(net: str, ranks: int, cluster: Cluster, folder: pathlib.Path) -> dict[str, Any]:
    """Saves the plans of a net; returns their predicted milliseconds and peak bytes."""
    graph = nets.captured(net)
    profile = nets.profiled(graph, cluster.devices[0].kind)
    stages = nets.cut(graph, ranks, cluster, profile)
    predictions = {}
    for schedule in nets.SCHEDULES:
        plan = nets.planned(graph, stages, schedule)
        save(plan, graph, folder / f"{net}.{ranks}.{schedule}.json")
        seconds, peaks = nets.predicted(graph, plan, cluster, profile)
        predictions[schedule] = {"ms": 1e3 * seconds, "peak_bytes": peaks}
    return predictions


def show_gems(rows: list[dict[str, Any]]) -> None:
    """Prints the rows as a Markdown table."""
    print(
        "| net | ranks | schedule | step, ms | images/s | predicted, ms | peak by rank, MiB "
        "| predicted, MiB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for r in rows:
        images = nets.NETS[r["net"]].micro * nets.MICROBATCHES
        for schedule, m in r["measured"].items():
            p = r["predicted"][schedule]
            print(
                f"| {r['net']} | {r['ranks']} | {schedule} | {m['ms']:.0f} | {1e3 * images / m['ms']:.1f} "
                f"| {p['ms']:.0f} | {_mebibytes(m)} | {_mebibytes(p)} |"
            )


def _mebibytes(row: dict[str, Any]) -> str:
    """Returns the peak of each rank in MiB, such as "12 / 34"."""
    return " / ".join(f"{b / 2**20:.0f}" for b in row["peak_bytes"])


def _launch(script: str, ranks: int, settings: dict[str, Any]) -> None:
    """Runs a script of this folder on `ranks` ranks until it ends."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", str(HERE / script), json.dumps(settings)]
    quiet = {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "5"}
    subprocess.run(command, check=True, env={**os.environ, **quiet})


def _machine() -> str:
    """Returns this machine in words."""
    return f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
