"""Small models for tests of plans and programs, captured once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor, nn

from raddle import zoo
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans.notation import read_tiling
from raddle.plans.plan import Plan
from raddle.zoo.workload import Workload

MODELS = ("lenet-tiny", "mlp-tiny", "gpt-tiny", "resnet110-tiny")


@cache
def small(name: str, dtype: torch.dtype = torch.float64) -> tuple[Workload, Graph]:
    """A model of the zoo with dropout switched off, and its graph."""
    work = zoo.load(name, device="cpu", dtype=dtype)
    model = work.model.train()
    for module in model.modules():
        for key in ("p", "dropout"):
            if isinstance(getattr(module, key, None), float):
                setattr(module, key, 0.0)
    return work, capture(model, work.batch, work.loss)


class Mlp(nn.Module):
    """x[2 4] -> fc1[2 8] -> relu -> fc2[2 2]"""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


@cache
def mlp() -> Graph:
    """The graph of Mlp, with operators fc1, relu, fc2 and sum."""
    return capture(Mlp(), (torch.zeros(2, 4),), supervised(lambda y: y.sum(), targets=0))


def make_plan(graph: Graph, tiles: Mapping[str, str], devices: int, **more: object) -> Plan:
    """A plan from tilings as text. Other operators are not split, on device 0. One bucket a parameter."""
    tilings = {op.name: read_tiling(op, tiles.get(op.name, "@0")) for op in graph.ops}
    assert tiles.keys() <= tilings.keys(), f"operators are {list(tilings)}"
    bn = "microbatch" if more.get("microbatches", 1) != 1 else "global"
    return Plan(tilings, devices, **{"bucket": 0, "bn": bn, **more})  # type: ignore[arg-type]
