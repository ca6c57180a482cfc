"""Memory by precision: master weights, copies that autocast makes, and recomputed blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_models import make_plan, mlp
from torch import Tensor, nn

from raddle.clusters import cluster
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans.optimizers import OPTIMIZERS
from raddle.program.lower import lower
from raddle.program.segments import segments
from raddle.simulation.memory.peaks import memory_curve, peak_bytes
from raddle.simulation.memory.value_sizes import ValueSizes
from raddle.simulation.timeline import simulate

ELEMENTS = 58  # of the parameters of Mlp


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize(
    ("sync", "precision", "held", "masters"),
    [
        # held: bytes of an element of a parameter and of its gradient on a device; masters: the share of
        # float32 copies that the optimizer updates.
        ("allreduce", "float32", 4 + 4, 0),
        ("allreduce", "tf32", 4 + 4, 0),
        ("allreduce", "bf16", 4 + 4, 0),
        ("allreduce", "fp16", 4 + 4, 0),
        ("allreduce", "bf16:pure", 2 + 2, 1),
        ("sharded", "float32", 4, 0),
        ("sharded", "bf16", 4, 0),
        ("sharded", "bf16,gather=bf16", 2, 0.5),
        ("sharded", "bf16:pure", 2, 0.5),
        ("sharded", "bf16:pure,reduce=float32", 2, 0.5),
        ("sharded:parameters", "float32", 0, 0.5),
        ("sharded:parameters", "bf16", 0, 0.5),
        ("sharded:parameters", "bf16:pure", 0, 0.5),
    ],
)
def test_parameters_by_hand(
    optimizer: str, sync: str, precision: str, held: int, masters: float
) -> None:
    tiles = {"fc1": "n/2 @0,1", "relu": "n/2 @0,1", "fc2": "n/2 @0,1"}
    plan = make_plan(mlp(), tiles, 2, optimizer=optimizer, sync=sync, precision=precision)
    timeline = simulate(lower(mlp(), plan), cluster("p100:1x2"))
    share = 0.5 if sync.startswith("sharded") else 1
    states = share * OPTIMIZERS[optimizer].state_elements
    expected = ELEMENTS * (held + 4 * (masters + states))
    assert [int(memory_curve(timeline, d)[1][-1]) for d in (0, 1)] == [expected] * 2


class NormThenLinear(nn.Module):
    """x[2 4] -> norm[2 4] -> fc[2 8]"""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(4), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(x))


@pytest.mark.parametrize(
    ("precision", "sync", "copies"),
    [
        ("float32", "allreduce", {}),
        # The norm gives float32, so the linear operator saves a copy of its input and of its weight.
        ("bf16", "allreduce", {"fc": 2 * (2 * 4 + 8 * 4)}),
        ("bf16:pure", "allreduce", {}),
        # The weight is gathered in bfloat16: autocast does not copy it.
        ("bf16,gather=bf16", "sharded", {"fc": 2 * 2 * 4}),
    ],
)
def test_copies_of_autocast_by_hand(precision: str, sync: str, copies: dict[str, int]) -> None:
    graph = capture(NormThenLinear(), (torch.zeros(2, 4),), supervised(torch.sum, targets=0))
    tiles = {op.name: "x2 @0,1" for op in graph.ops}
    program = lower(graph, make_plan(graph, tiles, 2, precision=precision, sync=sync))
    by_op = {name: nbytes.tolist() for name, nbytes in ValueSizes(program).copies.items()}
    assert by_op == {name: [nbytes] * 2 for name, nbytes in copies.items()}


def deep() -> Graph:
    """Four blocks of two linear operators; a block has more bytes of parameters than of values."""
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)) for _ in range(4)]
    return capture(nn.Sequential(*blocks), (torch.zeros(32, 64),), supervised(torch.sum, targets=0))


@pytest.mark.parametrize("sync", ["allreduce", "sharded", "sharded:parameters", "p3:slice=999"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_full_buckets_do_not_cut_recomputed_blocks(sync: str, precision: str) -> None:
    graph = deep()
    blocks = tuple(
        tuple(op.name for op in graph.ops if op.name.startswith(f"{k}.")) for k in range(3)
    )
    tiles = {op.name: "n/2 @0,1" for op in graph.ops if op.space.dims[0].name == "n"}
    settings = {"sync": sync, "precision": precision, "recompute": blocks, "bucket": 0}
    program = lower(graph, make_plan(graph, tiles, 2, **settings))
    cut = [tuple(op.name for op in ops) for ops in segments(program, 0)]
    assert cut[: len(blocks)] == list(blocks)


def test_recomputation_saves_as_much_on_two_devices_as_on_one() -> None:
    """The values that stay are the borders of blocks; with small buckets too."""
    graph = deep()
    blocks = tuple(
        tuple(op.name for op in graph.ops if op.name.startswith(f"{k}.")) for k in range(3)
    )
    saved = []
    for devices in (1, 2):
        tiling = "@0" if devices == 1 else "x2 @0,1"
        tiles = {op.name: tiling for op in graph.ops}
        peaks = [
            max(peak_bytes(simulate(lower(graph, plan), cluster(f"p100:1x{devices}"))))
            for recompute in ((), blocks)
            for plan in (make_plan(graph, tiles, devices, recompute=recompute, bucket=0),)
        ]
        saved.append(peaks[0] - peaks[1])
    assert saved[0] > 0
    assert np.ptp(saved) == 0
