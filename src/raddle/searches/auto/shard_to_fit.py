"""Tries ZeRO for plans of `auto` that would be the fastest, but do not fit the devices' memory.

With ZeRO-2 (`sharded`), every holder of a parameter keeps a shard of its gradient and optimizer state; with
ZeRO-3 (`sharded:parameters`) a shard of the parameter too. With several nodes, the devices of one node may
also hold all shards (HSDP), so that no parameter is gathered across nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raddle.errors import OutOfTime
from raddle.searches.auto.candidates import Candidate, CandidateSimulator
from raddle.searches.nodes import devices_per_node
from raddle.searches.settings import AUTO

MAX_SHARDED = 3  # candidates that are sharded


def shard_to_fit(
    simulator: CandidateSimulator, ranked: Sequence[Candidate], best: Candidate | None
) -> list[Candidate]:
    """Returns simulated candidates with ZeRO, in place of those that do not fit.

    ranked: candidates, the fastest first. best: the fastest candidate that fits, if there is one; only
    those that could be faster are sharded. Empty if the user has chosen the sync kind, or if there is no
    time left.
    """
    if simulator.settings.sync != AUTO or len(simulator.cluster.devices) < 2:
        return []
    limit = float("inf") if best is None else best.simulated_seconds
    too_large = [c for c in ranked if c.fits is False and not c.sync and c.time / 1e9 < limit]
    # Data parallelism gains most from ZeRO: each of its devices has a copy of every parameter.
    too_large.sort(key=lambda c: c.name != "data")
    kinds = ["sharded", "sharded:parameters"]
    if group_size := devices_per_node(simulator.cluster):
        kinds.append(f"sharded:parameters,group={group_size}")
    sharded = [
        replace(c, sync=kind, step_seconds=None, fits=None, name=f"{c.name}, {kind}")
        for c in too_large[:MAX_SHARDED]
        for kind in kinds
    ]
    simulated = []
    try:
        for c in sharded:
            if simulator.simulate(c):
                simulated.append(c)
    except OutOfTime:
        pass
    return simulated
