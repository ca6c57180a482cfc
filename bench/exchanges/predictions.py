"""Predicts an exchange on a description of the lab; links are shared first-fit or max-min fair.

A run is what run.py measures at once: `devices` as `raddle probe` describes them, `links` by round trips,
and `steps`: by pattern, the seconds of each step and the share of time in which the cores were busy, by
anything and by the ranks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from exchanges import PATTERNS, Topology
from fair import fair_seconds

from raddle.clusters import Cluster
from raddle.program.lower import lower
from raddle.simulation.timeline import simulate

Run = dict[str, Any]


class MeasuredStep(NamedTuple):
    """The median of several runs' medians, in seconds, and the range of all steps.

    by_ranks: the share of the cores' time that the ranks used, the largest of all runs.
    """

    seconds: float
    shortest: float
    longest: float
    by_ranks: float


def measured_step(runs: Sequence[Run], pattern: str) -> MeasuredStep:
    rows = [run["steps"][pattern] for run in runs]
    every = [seconds for row in rows for seconds in row["seconds"]]
    middle = statistics.median(statistics.median(row["seconds"]) for row in rows)
    # The first run did not measure how busy the ranks kept the cores.
    by_ranks = max((row["by_ranks"] for row in rows if "by_ranks" in row), default=math.nan)
    return MeasuredStep(middle, min(every), max(every), by_ranks)


def lab_cluster(topology: Topology, runs: Sequence[Run]) -> Cluster:
    """The lab as a cluster file describes it: probed devices, and the medians of the measured links."""
    (kind, device), *_ = runs[0]["devices"].items()
    between = [
        _median_link([run["links"]["between"][peer] for run in runs])
        for peer in range(topology.hosts - 1)
    ]
    # Round trips are between host 0 and another one. So host 0 has the link of the fastest other host.
    networks = [max(between, key=lambda link: link["bandwidth"]), *between]
    inside = _median_link([run["links"]["inside"] for run in runs])
    nodes = [
        {"devices": [kind] * topology.per_host, "link": inside, "network": network}
        for network in networks
    ]
    return Cluster.from_dict({"name": "lab", "devices": {kind: device}, "nodes": nodes})


def _median_link(links: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(link[key] for link in links) for key in links[0]}


def predict(topology: Topology, pattern: str, runs: Sequence[Run]) -> dict[str, float]:
    """Seconds of a step, by the rule by which links are shared."""
    exchange, cluster = PATTERNS[pattern](topology), lab_cluster(topology, runs)
    program = lower(exchange.graph, exchange.plan)
    return {
        "first-fit": simulate(program, cluster).total_seconds,
        "fair": fair_seconds(program, cluster),
    }
