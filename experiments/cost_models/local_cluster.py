"""Measures ranks of this machine (or hosts of a lab) as a Cluster, and the operators of plans as a Profile.

Predictions are made from both. All ranks measure operators at once, but not more of them than there are
cores. If there are more ranks than cores, the measured seconds are multiplied by ranks / cores.
"""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.cost_models.plans import PlanGroup, micro_batch_graph
from experiments.timing import run_ranks
from raddle.api.clusters import Cluster, Device, Link, Network, build_cluster, cores
from raddle.api.costs import Profile
from raddle.api.models import Graph
from raddle.api.plans import Plan, save_plan
from raddle.api.probing import describe, probe
from raddle.files import read_scratch, write_scratch


def probe_devices(ranks: int, *, quick: bool) -> tuple[Device, ...]:
    """Measures `ranks` ranks while all of them compute; one device for each.

    It always measures again, even if an earlier result is cached. quick: a shorter, rougher measurement.
    """
    return Cluster.from_dict(describe(probe(ranks, quick=quick, fresh=True))).devices


def measure_cluster(devices: Sequence[Device], rate: str | None, *, quick: bool) -> Cluster:
    """Returns a cluster of the devices with the links measured between their ranks.

    rate: of each host's link in the lab, such as "1gbit"; None: ranks of this machine, without a lab.
    `raddle probe` measures messages while all ranks compute. Here a rank does nothing else while it waits
    for a message, as in a step of a plan, where a rank waits only if it can compute nothing without it.
    """
    ranks = len(devices)
    # bandwidth, latency, host_overhead (what communication takes from a rank that computes)
    link = call_ranks({"what": "messages", "repeats": 3 if quick else 7}, ranks, rate)
    bandwidth, latency = link["bandwidth"], link["latency"]
    devices = [replace(d, host_overhead=link["host_overhead"]) for d in devices]
    # build_cluster takes nodes: (devices, the link between them, the network to other nodes)
    if rate is None:
        local_devices = [replace(d, node=0) for d in devices]
        return build_cluster(
            f"{ranks} ranks here", [(local_devices, Link(bandwidth, latency), None)]
        )
    network = Network(bandwidth, latency)
    hosts = [([replace(d, node=a)], None, network) for a, d in enumerate(devices)]
    return build_cluster(f"{ranks} hosts at {rate}", hosts)


def measure_profile(
    group: PlanGroup, graph: Graph, plans: Mapping[str, Plan], kind: str, *, quick: bool
) -> Profile:
    """Returns the measured seconds of every distinct tile of the plans.

    group: the network, batch and number of ranks that the plans are for (plans.py). graph: at that batch.
    kind: of device (such as a CPU core), a part of the profile's keys.
    """
    measuring_ranks = min(group.ranks, cores())
    with tempfile.TemporaryDirectory() as name:
        paths = [pathlib.Path(name) / f"{number}.json" for number in range(len(plans))]
        for path, plan in zip(paths, plans.values(), strict=True):
            save_plan(plan, micro_batch_graph(graph, plan), path)
        request = {
            "what": "profile", "spec": group.spec, "batch": group.batch, "kind": kind,
            "plans": list(map(str, paths)), "repeats": 3 if quick else 5,
        }  # fmt: skip
        seconds = call_ranks(request, measuring_ranks, None)
    return Profile(
        {key: tile_seconds * group.ranks / measuring_ranks for key, tile_seconds in seconds.items()}
    )


def call_ranks(request: Mapping[str, Any], ranks: int, rate: str | None) -> dict[str, Any]:
    """Runs local_cluster_rank.py on `ranks` ranks (in a lab if `rate` is given); returns its result.

    request: see `main` there.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        out = folder / "result.json"
        write_scratch(folder / "request.json", {**request, "out": str(out)})
        argv = ["-m", "experiments.cost_models.local_cluster_rank", str(folder / "request.json")]
        run_ranks(ranks, rate, argv)
        result: dict[str, Any] = read_scratch(out)
    return result
