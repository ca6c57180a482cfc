"""Measures exchanges between hosts in the lab and predicts them by raddle's simulation; see README.md.

An exchange is a training step that only communicates (exchanges.py). The hosts are network namespaces of
this machine (`raddle lab`); root and iproute2 are needed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import statistics
import sys
import tempfile
from typing import Any

import torch
from exchanges import PATTERNS, TOPOLOGIES, Topology
from predictions import measured_step, predict

from raddle.errors import InputError
from raddle.lab import Lab, launch
from raddle.lab.torchrun import torchrun_commands
from raddle.probe import describe, probe

HERE = pathlib.Path(__file__).parent
RESULTS = HERE / "results.json"


def main() -> None:
    """Measure one run on each topology, store it with the earlier runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topologies", default=",".join(t.name for t in TOPOLOGIES))
    parser.add_argument("--rounds", type=int, default=3, help="steps of each exchange in a run")
    parser.add_argument("--fresh", action="store_true", help="forget earlier runs")
    parser.add_argument("--print", action="store_true", help="predict what was measured before")
    chosen = parser.parse_args()
    if RESULTS.exists() and (chosen.print or not chosen.fresh):
        results = json.loads(RESULTS.read_text())
    else:
        results = {"machine": _machine(), "topologies": {}}
    if not chosen.print:
        for topology in TOPOLOGIES:
            if topology.name in chosen.topologies.split(","):
                runs = results["topologies"].setdefault(topology.name, [])
                runs.append(measure(topology, chosen.rounds))
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    show(results["topologies"])


def _machine() -> str:
    """Return a description of this machine."""
    return f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"


def measure(topology: Topology, rounds: int) -> dict[str, Any]:
    """Return one run: the probe of this machine for as many ranks, and the ranks' measurements in a lab."""
    probed = describe(probe(topology.ranks))
    rates = {host: topology.host_rate(host) for host in topology.slow}
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "measured.json"
        try:
            with Lab.up(
                hosts=topology.hosts, rate=topology.rate, rates=rates, name="exchanges"
            ) as lab:
                argv = [str(HERE / "rank.py"), topology.name, str(rounds), str(out)]
                commands = torchrun_commands(lab, argv, per_host=topology.per_host)
                launch(lab, commands.__getitem__, 330)  # seconds
        except InputError as error:
            print(f"skipped: {error}")
            sys.exit(0)
        measured: dict[str, Any] = json.loads(out.read_text())
    return {"devices": probed["devices"], **measured}


def show(topologies: dict[str, Any]) -> None:
    """Print measured and predicted times; topologies: name -> runs."""
    errors: dict[str, list[float]] = {"first-fit": [], "fair": []}
    print(
        "| hosts × ranks | pattern | measured, ms (range) | cores busy, by ranks "
        "| first-fit, ms | off | max-min fair, ms | off |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for topology in TOPOLOGIES:
        runs = topologies.get(topology.name, [])
        for pattern in PATTERNS if runs else ():
            measured = measured_step(runs, pattern)
            span = f"{1e3 * measured.shortest:.0f} to {1e3 * measured.longest:.0f}"
            cells = [topology.name, pattern, f"{1e3 * measured.seconds:.0f} ({span})"]
            cells.append(f"{measured.by_ranks:.0%}")
            for rule, seconds in predict(topology, pattern, runs).items():
                errors[rule].append(seconds / measured.seconds - 1)
                cells += [f"{1e3 * seconds:.0f}", f"{errors[rule][-1]:+.1%}"]
            print(f"| {' | '.join(cells)} |")
    print()
    for rule, values in errors.items():
        sizes = [abs(value) for value in values]
        print(f"{rule}: median error {statistics.median(sizes):.1%}, worst {max(sizes):.1%}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
