"""Computes the work of each layer: FLOPs, time, both, or numbers from a file.

A partition gives each part (device) about the same work, or its share of it. A layer is all operators that
share a weight (network.py). In the option `--weights` of `raddle partition`, and in error messages, a
*weight* of a layer is its work, as hypergraph partitioners call it; it is no parameter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raddle.clusters import Device
from raddle.costs.compute import ComputeCosts
from raddle.costs.profile import Profile
from raddle.errors import InputError, quote
from raddle.files import read_json
from raddle.graph.gradients import active_values, has_backward
from raddle.graph.graph import Graph
from raddle.searches.hypergraph.network import LayerNetwork

Array = np.ndarray
KINDS = ("flops", "time", "both")
MAX_WORK = 1e30  # of a layer in a file, in any unit


def layer_work(
    graph: Graph, network: LayerNetwork, kind: str, device: Device, profile: Profile | None = None
) -> Array:
    """Returns the work of each layer.

    kind: "flops" (of a forward); "time" (seconds of forward and backward on the device, measured where the
    profile has the operator); "both" (the mean of the layer's shares of flops and of time, as in the
    thesis, docs/papers.md); else the path of a file.
    """
    flops = np.array([layer.flops for layer in network.layers], float)
    if kind == "flops":
        return flops
    if kind not in KINDS:
        return _read_work(network, kind)
    active = active_values(graph)  # the values that have a gradient
    compute, ops = ComputeCosts(graph, active, profile), {op.name: op for op in graph.ops}
    seconds = np.array(
        [
            sum(
                compute.seconds(ops[name], ops[name].space.full, phase, device)
                for name in layer.ops
                for phase in "FB"  # forward, backward
                if phase == "F" or has_backward(ops[name], active)
            )
            for layer in network.layers
        ]
    )
    if kind == "time":
        return seconds
    mean_shares: Array = (flops / flops.sum() + seconds / seconds.sum()) / 2
    return mean_shares


def _read_work(network: LayerNetwork, path: str) -> Array:
    """Reads a JSON file: a list of numbers in the order of layers, or numbers by name of the layer."""
    data: Any = read_json(
        path, "file of weights", missing_hint=f"give {', '.join(KINDS)}, or a file of JSON"
    )
    names = [layer.name for layer in network.layers]
    if isinstance(data, dict):
        missing = [name for name in names if name not in data]
        if missing:
            raise InputError(
                f"{quote(path)} has no weight of '{missing[0]}': give one for each layer."
            )
        data = [data[name] for name in names]
    all_valid = isinstance(data, list) and all(
        type(n) in (int, float) and 0 <= n <= MAX_WORK for n in data
    )
    if not all_valid or len(data) != len(names) or not sum(data):
        raise InputError(
            f"{quote(path)} has no weights of {len(names)} layers: list a number up to {MAX_WORK:g} for "
            f"each, from '{names[0]}' to '{names[-1]}', or give them by name."
        )
    return np.array(data, float)
