"""Defines four patterns of communication as training steps that compute next to nothing, on three labs.

A pattern is a small model with a plan. `Topology` describes the lab on which it runs: hosts with several
ranks each, which share the host's one shaped interface.

- all-gather: rows of an activation are on all ranks, and the next layer's filters need all rows. The
  backward sends partial gradients back to the holders of the rows (a reduce-scatter).
- all-to-all: an activation is split by rows, then by columns, and back in the backward.
- halo: an image is split into tiles, and every output needs pixels of the neighbouring tiles.
- pipeline: two stages with a replica on each host. The messages of the pipeline and the all-reduces of
  both stages cross the same interfaces.
"""

# n: samples, k: columns, h, w: height and width, P: ranks

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raddle import supervised
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.notation import read_tiles
from raddle.plans.plan import Plan, describe_inputs, parameter_shapes

MICROBATCHES = 4  # of the pipeline


@dataclass(frozen=True)
class Topology:
    """Hosts with a few ranks each, behind one interface per host."""

    name: str
    hosts: int
    per_host: int  # ranks of a host
    rate: str  # of an interface, as "200mbit"
    slow: Mapping[int, str]  # by host with another rate: this rate

    @property
    def ranks(self) -> int:
        """The number of ranks of all hosts."""
        return self.hosts * self.per_host

    def host_rate(self, host: int) -> str:
        """Return the rate of a host's interface."""
        return self.slow.get(host, self.rate)


TOPOLOGIES = (
    Topology("2x2", 2, 2, "200mbit", {}),
    Topology("4x2", 4, 2, "200mbit", {}),
    Topology("3x2-slow", 3, 2, "200mbit", {1: "100mbit"}),
)


class Exchange(NamedTuple):
    """A model with a batch, its graph and the plan whose messages are the pattern."""

    model: nn.Module
    inputs: Tensor
    target: Tensor
    graph: Graph
    plan: Plan


class Scale(nn.Module):
    """Multiplies by a parameter of the given shape, so that the input has a gradient."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(*shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def all_gather(topology: Topology) -> Exchange:
    """Return the pattern all-gather; see the top of the file."""
    P, n, k = topology.ranks, 1536, 2048
    model = nn.Sequential(Scale(1), nn.Linear(k, 2 * P, bias=False))
    tiles = {"0": f"n/{P}", "1": f"c/{P}", "mse_loss": f"c/{P}", "mean": f"c/{P}"}
    batch = torch.randn(n, k), torch.randn(n, 2 * P)
    return _exchange(model, *batch, _on_all(tiles, P), P)


def all_to_all(topology: Topology) -> Exchange:
    """Return the pattern all-to-all; see the top of the file."""
    P, n, k = topology.ranks, 1536, 6144
    model = nn.Sequential(Scale(1), Scale(k))
    tiles = {"0": f"n/{P}", "1": f"c/{P}", "mse_loss": f"c/{P}", "mean": f"c/{P}"}
    return _exchange(model, torch.randn(n, k), torch.randn(n, k), _on_all(tiles, P), P)


def halo(topology: Topology) -> Exchange:
    """Return the pattern halo: an image in a grid of tiles.

    The tiles of one row of the grid are on one host, so every edge between rows crosses interfaces.
    """
    P, rows, columns = topology.ranks, topology.hosts, topology.per_host
    overlap = 128, 8  # pixels that a tile needs of its neighbours, down and across
    width = 16384  # pixels of the image
    kernel = 3 * overlap[0], 3 * overlap[1]
    model = nn.Sequential(Scale(1), nn.AvgPool2d(kernel, overlap, overlap))
    grid = f"h/{rows} w/{columns}"
    x = torch.randn(1, 1, rows * overlap[0], width)
    tiles = {"0": grid, "1": grid, "mse_loss": grid, "mean": grid}
    return _exchange(model, x, torch.randn(1, 1, rows, width // overlap[1]), _on_all(tiles, P), P)


def pipeline(topology: Topology) -> Exchange:
    """Return the pattern pipeline: stage 1 of a replica is on the next host after stage 0's.

    Stages 0 are on the first rank of each host, stages 1 on the second.
    """
    P, replicas, k = topology.ranks, topology.hosts, 2**19
    model = nn.Sequential(Scale(k), Scale(k))
    first = ",".join(str(2 * host) for host in range(replicas))
    second = ",".join(str((2 * host + 3) % P) for host in range(replicas))
    tiles = {
        "0": f"n/{replicas} @{first}",
        "1": f"n/{replicas} @{second}",
        "mse_loss": f"n/{replicas} @{second}",
        "mean": f"n/{replicas} @{second}",
    }
    stages = (("0",), ("1", "mse_loss", "mean"))
    batch = torch.randn(replicas, k), torch.randn(replicas, k)
    return _exchange(model, *batch, tiles, P, stages)


PATTERNS: Mapping[str, Callable[[Topology], Exchange]] = {
    "all-gather": all_gather,
    "all-to-all": all_to_all,
    "halo": halo,
    "pipeline": pipeline,
}


def _on_all(tiles: Mapping[str, str], ranks: int) -> dict[str, str]:
    """Return the tiles with their devices: all ranks."""
    return {name: f"{text} @0-{ranks - 1}" for name, text in tiles.items()}


def _exchange(
    model: nn.Module, x: Tensor, target: Tensor, tiles: Mapping[str, str], ranks: int,
    stages: tuple[tuple[str, ...], ...] = (),
) -> Exchange:  # fmt: skip
    """Return the model with a plan of these tiles; x, target: a micro-batch if there are stages."""
    graph = capture(model, (x, target), supervised(F.mse_loss), name="exchange")
    lines = "".join(f"{name}: {text}\n" for name, text in tiles.items())
    count = MICROBATCHES if stages else 1
    plan = Plan(
        read_tiles(graph, lines),
        ranks,
        microbatches=count,
        stages=stages,
        schedule="1f1b" if stages else "",
        fingerprint=graph.fingerprint(),
        batch=count * len(x),
        inputs=describe_inputs(graph),
        parameters=parameter_shapes(graph),
    )
    return Exchange(
        model,
        x.repeat(count, *[1] * (x.ndim - 1)),
        target.repeat(count, *[1] * (target.ndim - 1)),
        graph,
        plan,
    )
