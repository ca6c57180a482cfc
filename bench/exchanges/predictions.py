"""Predicts an exchange on a description of the lab; links are shared first-fit or max-min fair.

An exchange is a training step that only communicates (exchanges.py). First-fit: a link serves one message
at a time, as in raddle's simulation. Max-min fair: messages share a link, as TCP connections do (fair.py).

A Run is the result of one call of run.py: `devices` as `raddle probe` describes them, `links` by round
trips, and `steps`: by pattern, the seconds of each step and the share of time in which the cores were busy,
by anything and by the ranks.
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
    """The measured time of a step, over several runs; all times are in seconds."""

    seconds: float  # the median of the runs' medians
    shortest: float  # of all steps
    longest: float
    by_ranks: float  # the share of the cores' time that the ranks used, the largest of all runs


def measured_step(runs: Sequence[Run], pattern: str) -> MeasuredStep:
    """Return the measured time of a pattern's step."""
    rows = [run["steps"][pattern] for run in runs]
    all_seconds = [seconds for row in rows for seconds in row["seconds"]]
    middle = statistics.median(statistics.median(row["seconds"]) for row in rows)
    # The first run did not measure how busy the ranks kept the cores.
    by_ranks = max((row["by_ranks"] for row in rows if "by_ranks" in row), default=math.nan)
    return MeasuredStep(middle, min(all_seconds), max(all_seconds), by_ranks)


def lab_cluster(topology: Topology, runs: Sequence[Run]) -> Cluster:
    """Return the lab as a cluster: probed devices, and the medians of the measured links."""
    (kind, device), *_ = runs[0]["devices"].items()
    between = [
        _median_link([run["links"]["between"][peer] for run in runs])
        for peer in range(topology.hosts - 1)
    ]
    # Round trips are between host 0 and another host. So host 0 gets the link of the fastest other host.
    networks = [max(between, key=lambda link: link["bandwidth"]), *between]
    inside = _median_link([run["links"]["inside"] for run in runs])
    nodes = [
        {"devices": [kind] * topology.per_host, "link": inside, "network": network}
        for network in networks
    ]
    return Cluster.from_dict({"name": "lab", "devices": {kind: device}, "nodes": nodes})


def _median_link(links: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median latency and the median bandwidth of a link's measurements."""
    return {key: statistics.median(link[key] for link in links) for key in links[0]}


def predict(topology: Topology, pattern: str, runs: Sequence[Run]) -> dict[str, float]:
    """Return the predicted seconds of a step for each rule by which links are shared."""
    exchange, cluster = PATTERNS[pattern](topology), lab_cluster(topology, runs)
    program = lower(exchange.graph, exchange.plan)
    return {
        "first-fit": simulate(program, cluster).total_seconds,
        "fair": fair_seconds(program, cluster),
    }
