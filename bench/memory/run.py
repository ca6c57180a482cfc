"""Predicted against measured memory of one device; see README.md."""

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
    work = zoo.load(name, batch=batch)
    graph = capture(work.model, work.inputs, targets=work.targets, loss=work.loss, name=name)
    tiles = {op.name: whole_tiling([d.size for d in op.space.dims], [0]) for op in graph.ops}
    program = lower(graph, Plan(tiles, 1, steps=2, optimizer=optimizer))
    return max(peak_bytes(simulate(program, cluster("h200:1"))))


def main() -> None:
    data = json.loads(MEASURED.read_text())
    print(f"measured on {data['device']}, torch {data['torch']}\n")
    print("| model | batch | optimizer | measured, MiB | predicted, MiB | difference |")
    print("|---|---|---|---|---|---|")
    for row in data["rows"]:
        ours = predicted(row["model"], row["batch"], row["optimizer"])
        share = ours / row["bytes"] - 1
        cells = (
            row["model"],
            row["batch"],
            row["optimizer"],
            row["bytes"] >> 20,
            ours >> 20,
            f"{share:+.1%}",
        )
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
