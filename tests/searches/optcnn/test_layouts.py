"""Layouts of whole groups against the tiles of each configuration, on random graphs.

The graphs have slices, concatenations, views and the like, for which tiles are hardest to derive.
"""

# x: configuration, d: device, g: group

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_optcnn import OPTIONS, Recount, machine
from torch import Tensor, nn

from raddle.clusters import cluster
from raddle.graph.box import Box
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.validation import validate
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.searches.configurations import tiles
from raddle.searches.groups import Group, find_groups, group_indices
from raddle.searches.optcnn.layouts import LayoutBuilder, MemberLayout
from raddle.searches.optcnn.method import plan_tiles
from raddle.searches.optcnn.ranges import Ranges
from raddle.searches.optcnn.tables import Tables, build_tables
from raddle.searches.planning import plan_for

SAMPLES, WIDTH = 4, 6


class Step(NamedTuple):
    """One operation of a random model, on one or two of the values so far."""

    kind: str
    a: int
    b: int
    dim: int
    start: int
    stride: int


def linear(m: Random, k: int, x: Tensor, y: Tensor, s: Step) -> Tensor:
    return m.layers[str(k)](x.flatten(1)).view(SAMPLES, 2, 3)


def sliced(m: Random, k: int, x: Tensor, y: Tensor, s: Step) -> Tensor:
    dim = 1 + s.dim % (x.dim() - 1)
    size = x.shape[dim]
    start = s.start % size
    index = [slice(None)] * x.dim()
    index[dim] = slice(start, size, 1 + s.stride % 3)
    return x[tuple(index)]


def joined(m: Random, k: int, x: Tensor, y: Tensor, s: Step) -> Tensor:
    if x.shape == y.shape:
        return torch.cat([x, y], 1 + s.dim % (x.dim() - 1))
    return torch.cat([x.flatten(1), y.flatten(1)], 1)


def padded(m: Random, k: int, x: Tensor, y: Tensor, s: Step) -> Tensor:
    return nn.functional.pad(x, (s.start % 3, s.stride % 3))


def transposed(m: Random, k: int, x: Tensor, y: Tensor, s: Step) -> Tensor:
    return x.transpose(1, 2) if x.dim() > 2 else x.unflatten(1, (1, -1))


def viewed(m: Random, k: int, x: Tensor, y: Tensor, s: Step) -> Tensor:
    size = x[0].numel()
    parts = next(p for p in (2, 3, 5, 7, 1) if size % p == 0)
    return x.reshape(SAMPLES, parts, -1)


def reduced(m: Random, k: int, x: Tensor, y: Tensor, s: Step) -> Tensor:
    return x.mean(1 + s.dim % (x.dim() - 1), keepdim=True)


def added(m: Random, k: int, x: Tensor, y: Tensor, s: Step) -> Tensor:
    return x + y if x.shape == y.shape else x.tanh()


KINDS = {
    "linear": linear, "slice": sliced, "cat": joined, "pad": padded, "transpose": transposed,
    "view": viewed, "mean": reduced, "add": added,
}  # fmt: skip
NUMBERS = st.integers(0, 11)
STEPS = st.lists(
    st.builds(Step, st.sampled_from(list(KINDS)), NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    min_size=2,
    max_size=8,
)


class Random(nn.Module):
    """A random model: a linear layer, and then the operations of `steps`."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = steps
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.layers = nn.ModuleDict(
            {str(k): nn.LazyLinear(6) for k, s in enumerate(steps) if s.kind == "linear"}
        )
        with torch.no_grad():
            self(torch.zeros(SAMPLES, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        values = [self.first(x).view(SAMPLES, 3, 4)]
        for k, step in enumerate(self.steps):
            x, y = values[-1 - step.a % len(values)], values[step.b % len(values)]
            values.append(KINDS[step.kind](self, k, x, y, step))
        return torch.stack([v.square().sum() for v in values]).sum()


def captured(steps: list[Step]) -> Graph:
    return capture(Random(steps).to("meta"), [torch.zeros(SAMPLES, WIDTH, device="meta")])


def box_of(ranges: tuple[Ranges, ...], x: int, d: int) -> Box | None:
    spans = [r.span(x, d) for r in ranges]
    if any(hi <= lo for lo, hi in spans):
        return None
    return Box(tuple(lo for lo, _ in spans), tuple(hi for _, hi in spans))


def assert_laid_out(group: Group, layouts: tuple[MemberLayout, ...]) -> None:
    """Checks, for every configuration and device, the tile and the regions that it reads."""
    lattice = layouts[0].lattice
    for x, configuration in enumerate(lattice.configurations):
        tilings = tiles(group, configuration)
        for member, layout in zip(group.members, layouts, strict=True):
            op = member.op
            boxes = {t.device: t.box for t in tilings[op.name].tiles}
            assert np.flatnonzero(layout.present[x]).tolist() == sorted(boxes), op.name
            for d, box in boxes.items():
                assert box_of(layout.dims, x, d) == box, op.name
                needs = [
                    box_of(need.ranges, x, d) if need.present[x, d] else None
                    for need in layout.needs
                ]
                assert tuple(needs) == op.space.regions(box), op.name


def transfer_seconds_by_pair(
    tables: Tables, recount: Recount, choice: list[int]
) -> dict[tuple[int, int], list[float]]:
    """For each pair of groups, the transfer seconds of each operator of the second that reads the first."""
    tilings = [
        tiles(group, of[x])
        for group, of, x in zip(tables.groups, tables.configurations, choice, strict=True)
    ]
    of = group_indices(tables.groups)
    seconds: dict[tuple[int, int], list[float]] = {}
    for op in (op for op in recount.graph.ops if op.name in of):
        for operand, name in enumerate(op.inputs):
            producer, output = recount.made_by.get(name, (op, 0))
            g, h = of.get(producer.name), of[op.name]
            if g is not None and g != h:
                source, target = tilings[g][producer.name], tilings[h][op.name]
                seconds.setdefault((g, h), []).append(
                    recount.transfer_seconds(producer, output, source, op, operand, target)
                )
    return seconds


FEWER = settings(max_examples=max(5, settings().max_examples // 5))


@FEWER
@given(STEPS, OPTIONS)
def test_layouts_are_the_tiles_and_the_regions_that_they_read(
    steps: list[Step], options: dict[str, bool]
) -> None:
    graph = captured(steps)
    builder = LayoutBuilder(np.arange(4), 4, **options)
    for group in find_groups(graph):
        assert_laid_out(group, builder.layouts(group))


@FEWER
@given(st.data(), STEPS, st.sampled_from(["p100:2x2", "mixed"]), OPTIONS)
def test_tables_are_what_a_recount_finds_and_choices_are_plans(
    data: st.DataObject, steps: list[Step], where: str, options: dict[str, bool]
) -> None:
    graph, on = captured(steps), machine(where)
    tables, recount = build_tables(graph, on, **options), Recount(graph, on)  # type: ignore[arg-type]
    choice = [
        data.draw(st.integers(0, len(group_configurations) - 1))
        for group_configurations in tables.configurations
    ]
    chosen = [
        configurations[x] for configurations, x in zip(tables.configurations, choice, strict=True)
    ]
    for g, x in enumerate(choice):
        seconds = recount.compute_seconds(tables.groups[g], chosen[g])
        assert tables.compute[g][x] == pytest.approx(seconds, rel=1e-6)
    for (g, h), readers in transfer_seconds_by_pair(tables, recount, choice).items():
        costs = [float(e.cost[choice[g], choice[h]]) for e in tables.edges if e[:2] == (g, h)]
        for some, others in ((costs, readers), (readers, costs)):
            assert all(any(a == pytest.approx(b, rel=1e-5) for b in others) for a in some)
    plan = Plan(plan_tiles(graph, on, tables.groups, chosen), len(on.devices), bn="local")
    validate(plan, graph)
    check(lower(graph, plan))


class Merging(nn.Module):
    """Swin's patch merging: patches of four neighbours, taken by slices with a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x).view(4, 8, 8, 8)
        return torch.cat([y[:, 0::2, 0::2], y[:, 1::2, 0::2]], -1).square().sum()


@pytest.mark.parametrize("method", ["optcnn", "auto"])
def test_patch_merging_is_planned(method: str) -> None:
    graph = capture(Merging().to("meta"), [torch.zeros(4, 64, 8, device="meta")])
    plan = plan_for(graph, cluster("p100:1x4"), method, budget=1)
    check(lower(graph, plan))
