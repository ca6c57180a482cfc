"""Prints predicted and published bus bandwidths of collectives on H100 and A100.

    python bench/collectives/run.py            # every published figure, and the table of all sizes
    python bench/collectives/run.py --json

The bus bandwidth of P devices, as nccl-tests define it, is size / time, multiplied by 2(P-1)/P for an
all-reduce and by (P-1)/P for the other collectives.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import NamedTuple

from raddle.clusters import cluster
from raddle.costs.collective_algorithms import algorithms
from raddle.costs.collectives import collective_seconds
from raddle.program.collective_kind import Collective

FOLDER = Path(__file__).parent
KINDS = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
)
SIZES = (16, 256, 1024, 8192)  # MiB
COUNTS = (8, 16, 128, 1024)  # devices


class Comparison(NamedTuple):
    """A published bus bandwidth, in GB/s, beside the predicted one."""

    preset: str
    devices: int
    kind: Collective
    mib: int
    published: float
    predicted: float
    use: str  # "fitted": raddle's cost model was fitted to this figure; or "held out"
    source: str  # where the figure was published

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.published - 1


def bus_bandwidth(spec: str, kind: Collective, nbytes: int) -> float:
    """Return the bus bandwidth of a collective among all devices of a cluster, in GB/s."""
    machine = cluster(spec)
    count = len(machine.devices)
    passes = 2 if kind is Collective.ALL_REDUCE else 1
    seconds = collective_seconds(machine, kind, range(count), nbytes)
    return passes * (count - 1) / count * nbytes / seconds / 1e9


def fastest(spec: str, kind: Collective, nbytes: int) -> str:
    """Return the name of the fastest algorithm; an algorithm's time is a line over the bytes."""
    machine = cluster(spec)
    lines = algorithms(machine, kind, range(len(machine.devices)))
    return min(lines, key=lambda name: lines[name].fixed + lines[name].per_byte * nbytes)


def comparisons() -> list[Comparison]:
    """Return all rows of published.csv with predictions."""
    rows = []
    with (FOLDER / "published.csv").open() as file:
        for row in csv.DictReader(file):
            kind, mib = Collective(row["collective"]), int(row["mib"])
            predicted = bus_bandwidth(f"{row['preset']}:{row['nodes']}x8", kind, mib << 20)
            rows.append(
                Comparison(
                    row["preset"], 8 * int(row["nodes"]), kind, mib, float(row["busbw"]),
                    predicted, row["use"], row["source"],
                )
            )  # fmt: skip
    return rows


def print_comparisons(rows: list[Comparison]) -> None:
    """Print a table of the comparisons, and the median errors."""
    print("| preset | devices | collective | MiB | published | predicted | error | use | source |")
    print("|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        print(
            f"| {r.preset} | {r.devices} | {r.kind} | {r.mib} | {r.published:.1f} | {r.predicted:.1f} "
            f"| {r.error:+.0%} | {r.use} | {r.source} |"
        )
    for use in ("fitted", "held out"):
        errors = sorted(abs(r.error) for r in rows if r.use == use)
        within = sum(error <= 0.2 for error in errors)
        print(
            f"\n{use}: {within} of {len(errors)} within 20 %, median {errors[len(errors) // 2]:.1%}"
        )


def print_table() -> None:
    """Print the predictions for all SIZES and COUNTS, with the fastest algorithm."""
    print("\n| preset | devices | collective | " + " | ".join(f"{m} MiB" for m in SIZES) + " |")
    print("|---|---|---|" + "---|" * len(SIZES))
    for preset in ("h100", "a100"):
        for count in COUNTS:
            spec = f"{preset}:{count}"
            for kind in KINDS:
                cells = [
                    f"{bus_bandwidth(spec, kind, m << 20):.1f} ({fastest(spec, kind, m << 20)})"
                    for m in SIZES
                ]
                print(f"| {preset} | {count} | {kind} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    compared = comparisons()
    if "--json" in sys.argv[1:]:
        print(json.dumps([{**r._asdict(), "error": r.error} for r in compared], indent=1))
    else:
        print_comparisons(compared)
        print_table()
