"""Images split in height and width: halos through convolutions, strides, pools and batch norms.

Three stacked convolutions with batch norm, a max pool and a stride; every gradient equals the plain
module's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod

import pytest
import torch
from pipeline_plans import PipelineTask, cut_evenly, make_pipeline_plan, stage_tiles
from torch import Tensor, nn
from torch.nn import functional as F

from raddle.plans.plan import Plan
from raddle.program.program import Move


class Stack(nn.Module):
    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        pad = kernel // 2
        self.conv1, self.norm1 = nn.Conv2d(2, 4, kernel, padding=pad), nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 5, kernel, stride=stride, padding=pad)
        self.norm2 = nn.BatchNorm2d(5)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.conv3, self.norm3 = nn.Conv2d(5, 3, kernel, padding=pad), nn.BatchNorm2d(3)
        self.fc = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = self.pool(torch.relu(self.norm2(self.conv2(x))))
        x = torch.relu(self.norm3(self.conv3(x)))
        return self.fc(x.mean((2, 3)))


@cache
def stack(kernel: int, stride: int) -> PipelineTask:
    torch.manual_seed(5)
    x = torch.randn(2, 2, 17 if stride == 1 else 32, 18 if stride == 1 else 34).double()
    return PipelineTask(
        Stack(kernel, stride).double(), [x], [torch.tensor([1, 3])], F.cross_entropy
    )


SPLITS = (
    {"h": 2}, {"h": 4}, {"w": 2}, {"w": 4}, {"h": 2, "w": 2},
    {"n": 2, "h": 2}, {"c": 2, "w": 2},
)  # fmt: skip


def halos(piped: PipelineTask, plan: Plan) -> set[str]:
    """The values whose halos (borders of tiles) are sent."""
    program = piped.verify(plan)
    moves = (i for i in program.instructions if isinstance(i, Move) and i.kind == "activation")
    return {i.value for i in moves}


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("letters", SPLITS, ids=str)
def test_halos_through_stacked_convolutions(
    letters: Mapping[str, int], stride: int, kernel: int
) -> None:
    piped = stack(kernel, stride)
    names = tuple(op.name for op in piped.graph.ops)
    devices = list(range(prod(letters.values())))
    tiles = stage_tiles(piped.graph, [names], [devices], [letters])
    sent = halos(piped, Plan(tiles, len(devices), bn="global", steps=piped.steps))
    read = {piped.graph.op(name).inputs[0] for name in ("conv2", "pool", "conv3")}
    assert read <= sent  # convolutions and pools read across the borders of their tiles


@pytest.mark.parametrize("schedule", ["1f1b", "chimera"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("letters", SPLITS[:5], ids=str)
def test_the_same_inside_a_pipeline(letters: Mapping[str, int], stride: int, schedule: str) -> None:
    """Both stages are split, the second along the other dimension; micro-batches of 2, 2 and 1 samples."""
    piped = stack(3, stride)
    stages = cut_evenly(piped.graph, 2)
    count = prod(letters.values())
    turned = {{"h": "w", "w": "h"}[letter]: k for letter, k in letters.items()}
    devices = [range(count), range(count, 2 * count)]
    tiles = stage_tiles(piped.graph, stages, devices, [letters, turned])
    piped.verify(make_pipeline_plan(piped, tiles, 2 * count, 3, stages, schedule, batch=5))
    one = stage_tiles(piped.graph, stages, [range(count), [count]], [letters, {}])
    if schedule == "1f1b":
        piped.verify(make_pipeline_plan(piped, one, count + 1, 3, stages, schedule))
