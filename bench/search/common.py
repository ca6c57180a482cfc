"""Shares captured models, clusters and a file of results between the parts of this benchmark."""

from __future__ import annotations

import json
import os
import pathlib
from functools import cache
from typing import Any

from raddle import zoo
from raddle.clusters import Cluster, cluster
from raddle.graph.capture import capture
from raddle.graph.graph import Graph

HERE = pathlib.Path(__file__).parent
RESULTS = pathlib.Path(os.environ.get("RESULTS", HERE / "results.json"))  # one file a process

# Nodes of 4 P100 as in the papers, on a slow network.
SLOW = """
name: p100-{name}:4x4
devices: {{p100: {{flops: {{float32: 10.6 TFLOP/s}}, memory: 16 GB, bandwidth: 732 GB/s}}}}
nodes:
  - {{count: 4, devices: [p100, p100, p100, p100], link: {{bandwidth: 40 GB/s, latency: 5 us}}}}
network: {{bandwidth: {rate}, latency: 30 us}}
"""


@cache
def graph_of(model: str, batch: int) -> Graph:
    """Return the captured graph of a model of the zoo."""
    work = zoo.load(model, batch=batch)
    return capture(work.model, work.batch, work.loss, name=model)


@cache
def machine(spec: str) -> Cluster:
    """Return the cluster of a preset; or p100-10g or p100-1g: 4 nodes of 4 P100 on 10 or 1 Gbit/s."""
    rates = {"p100-10g": "10 Gbit/s", "p100-1g": "1 Gbit/s"}
    if spec not in rates:
        return cluster(spec)
    import yaml

    text = SLOW.format(name=spec.removeprefix("p100-"), rate=rates[spec])
    return Cluster.from_dict(yaml.safe_load(text), spec)


def results() -> dict[str, Any]:
    """Return the stored results: part -> key -> row."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def keep(part: str, key: str, row: Any) -> None:
    """Stores and prints the row of a result at once, so that a run may be split over several calls."""
    stored = results()
    stored.setdefault(part, {})[key] = row
    RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    print(part, key, json.dumps(row), flush=True)
