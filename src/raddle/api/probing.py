"""Measures this machine: compute speed and communication of its ranks, and blocks or operators of a model.

`probe` measures, `describe` turns the measurements into a description of a cluster, `write_probe` writes it
to a file. `fit` computes latency and bandwidth from times of messages.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from raddle import zoo
from raddle.clusters import Cluster
from raddle.costs.profile import Profile, load_profile
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.probe import describe, probe
from raddle.probe.blocks import make_trainer, single_device_plan
from raddle.probe.blocks import measure_blocks as measure_blocks_of
from raddle.probe.fit import fit
from raddle.probe.output import check as check_output
from raddle.probe.output import write as write_probe
from raddle.runtime.trainer import place_of
from raddle.searches.profile_methods import profile_methods

__all__ = [
    "ProfileCounts", "check_output", "describe", "fit", "measure_blocks", "measure_operators", "probe",
    "write_probe",
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


def measure_blocks(
    model: str,
    batch: int | None,
    cluster: Cluster,
    path: str,
    *,
    precision: str = "float32",
    compile: bool = False,
    on_progress: Callable[[Mapping[str, Any]], None] = lambda step: None,
) -> int:
    """Measure the blocks of a model as the executor runs them on one device; write a profile file.

    Returns the number of blocks, forwards and backwards. cluster: plans for it use the profile; its devices
    are of one kind, that of this machine's GPU or, if there is none, of its ranks. compile: whether blocks
    go through torch.compile. Measurements of operators that the file has already are kept.
    """
    kinds = {device.kind for device in cluster.devices}
    if len(kinds) > 1:
        raise InputError(
            f"'{cluster.name}' has devices of the kinds {', '.join(sorted(kinds))}, but this machine can "
            "measure only one kind: name a cluster with devices of one kind."
        )
    place = place_of(None)
    if place.type == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // len(cluster.devices)))
    old_profile = load_profile(path) if pathlib.Path(path).exists() else Profile()
    work = zoo.load(model, batch=batch, device="cpu")
    graph = capture(work.model, work.batch, work.loss, name=work.name)
    plan = single_device_plan(graph, precision, "sgd")
    trainer = make_trainer(graph, work.model, work.loss, plan, compile=compile, place=place)
    try:
        blocks = measure_blocks_of(trainer, work.batch, cluster.devices[0], on_progress=on_progress)
    finally:
        trainer.close()
    Profile(old_profile.seconds, blocks).save(path)
    return len(blocks.blocks)
