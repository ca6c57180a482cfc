"""The work of layers that a partition balances: operations, measured or predicted time, both, or given."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

from raddle.clusters import Device
from raddle.costs.compute import Compute
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.hypergraph.network import Network
from raddle.program.lower import active_values

Array = np.ndarray
KINDS = ("flops", "time", "both")


def layer_work(
    graph: Graph, network: Network, kind: str, device: Device, profile: Profile | None = None
) -> Array:
    """By layer. `time` is of forward and backward on a device, measured where a profile has it; `both` is
    the mean of the shares of operations and of time, as the thesis combines them; else it is a file."""
    flops = np.array([layer.flops for layer in network.layers], float)
    if kind == "flops":
        return flops
    if kind not in KINDS:
        return _given(network, kind)
    active = frozenset(active_values(graph))
    compute, ops = Compute(graph, active, profile), {op.name: op for op in graph.ops}
    time = np.array(
        [
            sum(
                compute.seconds(ops[name], ops[name].space.full, phase, device)
                for name in layer.ops
                for phase in "FB"
                if phase == "F" or ops[name].outputs[0] in active
            )
            for layer in network.layers
        ]
    )
    return time if kind == "time" else (flops / flops.sum() + time / time.sum()) / 2


def _given(network: Network, path: str) -> Array:
    """A list of numbers in the order of layers, or numbers by their names."""
    try:
        data: Any = json.loads(pathlib.Path(path).read_text())
    except FileNotFoundError:
        raise InputError(
            f"weights are {', '.join(KINDS)} or a file of JSON, and there is no file '{path}'."
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read as JSON: {error}.") from None
    names = [layer.name for layer in network.layers]
    if isinstance(data, dict):
        missing = [name for name in names if name not in data]
        if missing:
            raise InputError(f"'{path}' has no weight of '{missing[0]}': give one for each layer.")
        data = [data[name] for name in names]
    numbers = isinstance(data, list) and all(type(n) in (int, float) and n >= 0 for n in data)
    if not numbers or len(data) != len(names) or not sum(data):
        raise InputError(
            f"'{path}' has no weights of {len(names)} layers: list a number for each, from "
            f"'{names[0]}' to '{names[-1]}', or give them by name."
        )
    return np.array(data, float)
