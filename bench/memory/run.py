"""Compares predicted with measured memory of one device; see README.md.

measure.py has written the measurements on a GPU to measured.json.
"""

from __future__ import annotations

import json
import pathlib

from raddle import zoo
from raddle.clusters import cluster
from raddle.graph.capture import capture
from raddle.plans.plan import Plan
from raddle.plans.tiling import whole_tiling
from raddle.program.lower import lower
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.timeline import simulate

MEASURED = pathlib.Path(__file__).with_name("measured.json")


def predicted(name: str, batch: int, optimizer: str) -> int:
    """Return the predicted peak bytes of a training step on one H200."""
    work = zoo.load(name, batch=batch)
    graph = capture(work.model, work.batch, work.loss, name=name)
    tiles = {op.name: whole_tiling([d.size for d in op.space.dims], [0]) for op in graph.ops}
    program = lower(graph, Plan(tiles, 1, steps=2, optimizer=optimizer))
    return max(peak_bytes(simulate(program, cluster("h200:1"))))


def main() -> None:
    """Print the table."""
    measured = json.loads(MEASURED.read_text())
    print(f"measured on {measured['device']}, torch {measured['torch']}\n")
    print("| model | batch | optimizer | measured, MiB | predicted, MiB | difference |")
    print("|---|---|---|---|---|---|")
    for row in measured["rows"]:
        predicted_bytes = predicted(row["model"], row["batch"], row["optimizer"])
        difference = predicted_bytes / row["bytes"] - 1
        cells = (
            row["model"],
            row["batch"],
            row["optimizer"],
            row["bytes"] >> 20,
            predicted_bytes >> 20,
            f"{difference:+.1%}",
        )
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
