"""Measures this machine: compute speed and communication of its ranks, and operators of a model.

`probe` measures, `describe` turns the measurements into a description of a cluster, `write_probe` writes it
to a file. `fit` computes latency and bandwidth from times of messages.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from raddle.clusters import Cluster
from raddle.costs.profile import Profile, load_profile
from raddle.graph.graph import Graph
from raddle.probe import describe, probe
from raddle.probe.fit import fit
from raddle.probe.output import check as check_output
from raddle.probe.output import write as write_probe
from raddle.searches.profile_methods import profile_methods

__all__ = [
    "ProfileCounts", "check_output", "describe", "fit", "measure_operators", "probe", "write_probe",
]  # fmt: skip


class ProfileCounts(NamedTuple):
    """How many measurements a profile has: each is the forward or the backward of a tile of an operator."""

    entries: int  # number of measurements in the file
    new: int  # number of measurements that were made now


def measure_operators(
    graph: Graph,
    cluster: Cluster,
    path: str,
    *,
    fresh: bool = False,
    on_progress: Callable[[Mapping[str, Any]], None] = lambda step: None,
) -> ProfileCounts:
    """Measure the operators of a model, split as the methods split them, and write a profile file.

    Returns how many measurements the file has, and how many of them are new. fresh: discard all
    measurements that the file has already; else they are kept and not repeated.
    """
    old_profile = load_profile(path) if pathlib.Path(path).exists() and not fresh else Profile()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // len(cluster.devices)))
    new_profile = profile_methods(graph, cluster, profile=old_profile, on_progress=on_progress)
    new_profile.save(path)
    return ProfileCounts(
        len(new_profile.seconds), len(new_profile.seconds) - len(old_profile.seconds)
    )
