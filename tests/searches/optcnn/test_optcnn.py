"""OptCNN: cost tables against a slow recount, choices against enumeration, and plans against the checks.

t_C, t_S and t_X are the times of compute, synchronisation and transfers (searches/optcnn/tables.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import small
from torch import Tensor, nn

from raddle import zoo
from raddle.clusters import Cluster, cluster
from raddle.costs.collectives import all_reduce_seconds
from raddle.costs.compute import ComputeCosts
from raddle.costs.profile import Profile, profile_key
from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.capture import capture
from raddle.graph.gradients import active_values, contributes_gradient, has_backward
from raddle.graph.graph import Graph, Op
from raddle.graph.supervised import supervised
from raddle.plans.plan import DEFAULT_BUCKET, Plan
from raddle.plans.tiling import Tiling
from raddle.plans.validation import validate
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.merges import is_local_statistics, longest_dim
from raddle.program.replicated_loss import SMALL_RESULT
from raddle.searches.configurations import Configuration, tiles
from raddle.searches.groups import Group, group_indices
from raddle.searches.optcnn.method import (
    EXPOSED_SHARES,
    choose_configurations,
    optcnn_paper,
    plan_tiles,
)
from raddle.searches.optcnn.tables import Tables, build_tables
from raddle.searches.optcnn.transfers import sampled_devices
from raddle.searches.planning import plan_for
from raddle.simulation.fast.evaluator import Evaluator

MODELS = ("lenet-tiny", "mlp-tiny", "gpt-tiny", "resnet110-tiny", "rnntc-tiny", "unet-tiny")
CLUSTERS = ("p100:2x2", "p100:1x4", "mixed")


def mixed() -> Cluster:
    """A cluster of three nodes: two devices on a bus, one slow device, and two devices with a NIC each."""

    def kind(flops: float) -> dict[str, object]:
        return {"flops": {"float32": flops}, "memory": "16 GiB", "bandwidth": "700 GB/s"}

    def network(bandwidth: str, **more: object) -> dict[str, object]:
        return {"bandwidth": bandwidth, "latency": "20 us", **more}

    bus = {"bandwidth": "8 GB/s", "latency": "5 us", "shared": True}
    ports = {"bandwidth": "20 GB/s", "latency": "7 us", "duplex": False}
    return Cluster.from_dict(
        {
            "name": "mixed",
            "devices": {"fast": kind(4e12), "slow": kind(1e12)},
            "nodes": [
                {"devices": ["fast"] * 2, "link": bus, "network": network("1 GB/s")},
                {"devices": ["slow"], "network": network("2 GB/s")},
                {"devices": ["fast", "slow"], "link": ports,
                 "network": network("3 GB/s", per_device=True)},
            ],
        }
    )  # fmt: skip


@cache
def machine(name: str) -> Cluster:
    return mixed() if name == "mixed" else cluster(name)


@cache
def table(model: str, where: str, **options: bool) -> Tables:
    return build_tables(small(model)[1], machine(where), **options)  # type: ignore[arg-type]


# -- the recount ---------------------------------------------------------------------------------

Pieces = dict[int, list[Box]]  # by device
Messages = dict[int, list[float]]  # by device that receives them, their bytes


class Recount:
    """Counts the costs of the tables again in a slow and simple way: box by box and device by device."""

    def __init__(self, graph: Graph, cluster: Cluster) -> None:
        self.graph, self.cluster = graph, cluster
        self.active = active_values(graph)
        self.compute = ComputeCosts(graph, self.active)
        self.made_by = {o: (op, k) for op in graph.ops for k, o in enumerate(op.outputs)}

    def width(self, name: str) -> int:
        """Bytes of an element of a value."""
        return self.graph.values[name].dtype.itemsize

    def receive_seconds(self, inside: Messages, outside: Messages) -> float:
        """Seconds until all devices have their messages, link by link.

        The messages of a link follow each other while others are in flight: one latency.
        """
        times = [0.0]
        for a in range(self.cluster.nodes):
            devices = self.cluster.members(a)
            for link, messages, shared in (
                (self.cluster.node_links[a], inside, lambda link: link.shared),
                (self.cluster.node_networks[a], outside, lambda link: not link.per_device),
            ):
                queues = [messages.get(d, []) for d in devices]
                together = link is not None and shared(link)
                for queue in [list(chain(*queues))] if together else queues:
                    if queue:
                        assert link is not None
                        ways = 1 if link.duplex else 2
                        times.append(ways * sum(queue) / link.bandwidth + link.latency)
        return max(times)

    def held(self, op: Op, output: int, tiling: Tiling) -> Pieces:
        """The boxes of an output that each device has, after partial sums are merged."""
        pieces: Pieces = {}
        for tile in tiling.tiles:
            pieces.setdefault(tile.device, []).append(op.space.output_boxes(tile.box)[output])
        if not (op.space.is_product and self.partial(op, tiling)):
            return pieces
        first = pieces[0][0]
        along = longest_dim(first.shape)
        slices: Pieces = {}
        for device, (box,) in pieces.items():
            owners = [t.device for t in tiling.tiles if op.space.output_boxes(t.box)[output] == box]
            size, rank, count = box.shape[along], owners.index(device), len(owners)
            lo, hi = list(box.lo), list(box.hi)
            lo[along] = box.lo[along] + -(-size * rank // count)
            hi[along] = box.lo[along] + -(-size * (rank + 1) // count)
            slices[device] = [Box(tuple(lo), tuple(hi))]
        return slices

    def partial(self, op: Op, tiling: Tiling) -> bool:
        """Whether tiles of an operator are partial sums."""
        return bool(op.space.combine) and any(
            op.space.is_partial(tile.box) for tile in tiling.tiles
        )

    def transfer_seconds(
        self, producer: Op, output: int, source: Tiling, op: Op, operand: int, target: Tiling
    ) -> float:
        """t_X of one operand: `source` tiles the operator that makes it, `target` the one that reads it."""
        held = self.held(producer, output, source)
        name = producer.outputs[output]
        inside: Messages = {}
        outside: Messages = {}
        for tile in target.tiles:
            region = op.space.regions(tile.box)[operand]
            if region is None:
                continue
            node = self.cluster.members(self.cluster.devices[tile.device].node)
            own_boxes = held.get(tile.device, [])
            node_boxes = [box for d in node for box in held.get(d, [])]
            for box in dict.fromkeys(box for boxes in held.values() for box in boxes):
                amount = (box & region).volume * self.width(name)
                if amount and box not in own_boxes:
                    messages = inside if box in node_boxes else outside
                    messages.setdefault(tile.device, []).append(amount)
        back = contributes_gradient(op, name, self.active)
        return (2 if back else 1) * self.receive_seconds(inside, outside)

    def merge_seconds(self, op: Op, tiling: Tiling, readers: set[int]) -> float:
        """Seconds to merge partial sums: small results go to all, large ones are divided among partners."""
        inside: Messages = {}
        outside: Messages = {}
        seen: dict[Box, int] = {}
        copy = {}  # device -> number of its copy among equal tiles
        for tile in tiling.tiles:
            copy[tile.device] = seen[tile.box] = seen.get(tile.box, -1) + 1
        small = True
        for tile in tiling.tiles:
            out = op.space.output_boxes(tile.box)
            amount = sum(
                box.volume * self.width(name) for box, name in zip(out, op.outputs, strict=True)
            )
            small = small and amount <= SMALL_RESULT
            partners = [
                t.device
                for t in tiling.tiles
                if op.space.output_boxes(t.box) == out and copy[t.device] == copy[tile.device]
            ]
            sources = [t.device for t in tiling.tiles if not copy[t.device]] if small else partners
            node = self.cluster.members(self.cluster.devices[tile.device].node)
            pair = 2 if op.space.combine == "lse" else 1
            for source in sources if not small or tile.device in readers else []:
                if source != tile.device:
                    messages = inside if source in node else outside
                    nbytes = pair * amount / (1 if small else len(partners))
                    messages.setdefault(tile.device, []).append(nbytes)
        times = 2 if op.outputs[0] in self.active else 1
        return times * self.receive_seconds(inside, outside)

    def compute_seconds(self, group: Group, configuration: Configuration) -> float:
        """t_C of a group: compute, merges and transfers inside of the group."""
        tilings = tiles(group, configuration)
        busy = dict.fromkeys(configuration.devices, 0.0)
        communication = 0.0
        for member in group.members:
            op, tiling = member.op, tilings[member.op.name]
            phases = "FB" if has_backward(op, self.active) else "F"
            for tile in tiling.tiles:
                device = self.cluster.devices[tile.device]
                for phase in phases:
                    busy[tile.device] += self.compute.seconds(op, tile.box, phase, device)
            if self.partial(op, tiling) and not is_local_statistics(op, "local"):
                readers = {
                    d
                    for m in group.members
                    if set(m.op.inputs) & set(op.outputs)
                    for d in tilings[m.op.name].devices
                }
                communication += self.merge_seconds(op, tiling, readers or set(tiling.devices))
            for operand, name in enumerate(op.inputs):
                producer, output = self.made_by.get(name, (op, 0))
                if name in self.made_by and producer.name in group.ops:
                    communication += self.transfer_seconds(
                        producer, output, tilings[producer.name], op, operand, tiling
                    )
        return max(busy.values()) + communication

    def shares(self, group: Group, configuration: Configuration) -> dict[str, dict[int, list[Box]]]:
        """For each parameter and device, the boxes that the device holds."""
        tilings = tiles(group, configuration)
        held: dict[str, dict[int, list[Box]]] = {}
        for member in group.members:
            for operand, name in enumerate(member.op.inputs):
                if name in self.active and self.graph.values[name].role == "parameter":
                    for tile in tilings[member.op.name].tiles:
                        region = member.op.space.regions(tile.box)[operand]
                        boxes = held.setdefault(name, {}).setdefault(tile.device, [])
                        if region is not None and region not in boxes:
                            boxes.append(region)
        return held

    def users(self, name: str, groups: tuple[Group, ...]) -> int:
        """The number of groups that read a parameter."""
        return sum(any(name in m.op.inputs for m in group.members) for group in groups)

    def server_seconds(
        self, groups: tuple[Group, ...], g: int, configuration: Configuration
    ) -> float:
        """t_S as in the paper: a parameter server."""
        nodes = {self.cluster.devices[d].node for d in configuration.devices}
        networks = [self.cluster.node_networks[a] for a in nodes]
        link = self.cluster.node_links[0] if nodes == {0} else None
        bandwidth = link.bandwidth if link else min(n.bandwidth for n in networks if n is not None)
        return sum(
            2 * box.volume * self.width(name) / self.users(name, groups) / bandwidth
            for name, held in self.shares(groups[g], configuration).items()
            for boxes in held.values()
            for box in boxes
        )

    def ring_seconds(
        self, groups: tuple[Group, ...], g: int, configuration: Configuration
    ) -> float:
        """t_S of all-reduces: a small parameter takes its part of a bucket's time."""
        total = 0.0
        for name, held in self.shares(groups[g], configuration).items():
            rings: dict[tuple[Box, ...], list[int]] = {}
            for d in sorted(held):
                if held[d]:
                    rings.setdefault(tuple(sorted(held[d])), []).append(d)
            amount = sum(box.volume for box in held[0]) * self.width(name)
            assert amount <= DEFAULT_BUCKET
            load: dict[int, float] = {}
            for ring in rings.values():
                if len(ring) > 1:
                    pairs = zip(ring, [*ring[1:], ring[0]], strict=True)
                    links = {r for a, b in pairs for r in self.cluster.route(a, b).resources}
                    for link in links:
                        seconds = all_reduce_seconds(self.cluster, ring, DEFAULT_BUCKET)
                        load[link] = load.get(link, 0.0) + seconds
            part = amount / DEFAULT_BUCKET / self.users(name, groups)
            total += part * max(load.values(), default=0.0)
        return total

    def between_groups(self, tables: Tables, g: int, i: int, h: int, j: int) -> float:
        """t_X of all that one group reads of another."""
        source = tiles(tables.groups[g], tables.configurations[g][i])
        target = tiles(tables.groups[h], tables.configurations[h][j])
        total = 0.0
        seen: set[object] = set()
        for member in tables.groups[h].members:
            for operand, name in enumerate(member.op.inputs):
                producer, output = self.made_by.get(name, (member.op, 0))
                if name in self.made_by and producer.name in source:
                    tiling = target[member.op.name]
                    # Readers that need the same of a value fetch it once.
                    wants = tuple(
                        (t.device, member.op.space.regions(t.box)[operand]) for t in tiling.tiles
                    )
                    if (name, wants) not in seen:
                        seen.add((name, wants))
                        total += self.transfer_seconds(
                            producer, output, source[producer.name], member.op, operand, tiling
                        )
        return total


OPTIONS = st.fixed_dictionaries({"powers_of_two": st.booleans(), "reduction": st.booleans()})


@given(st.data(), st.sampled_from(MODELS), st.sampled_from(CLUSTERS), OPTIONS)
def test_nodes_are_what_a_recount_finds(
    data: st.DataObject, model: str, where: str, options: dict[str, bool]
) -> None:
    tables = table(model, where, **options)
    recount = Recount(small(model)[1], machine(where))
    g = data.draw(st.integers(0, len(tables.groups) - 1))
    x = data.draw(st.integers(0, len(tables.configurations[g]) - 1))
    configuration = tables.configurations[g][x]
    group = tables.groups[g]
    assert tables.compute[g][x] == pytest.approx(
        recount.compute_seconds(group, configuration), rel=1e-6
    )
    assert tables.sync[g][x] == pytest.approx(
        recount.ring_seconds(tables.groups, g, configuration), rel=1e-9
    )
    assert tables.nodes[g][x] == tables.compute[g][x] + tables.sync[g][x]
    paper = table(model, where, paper=True, **options)
    assert paper.sync[g][x] == pytest.approx(
        recount.server_seconds(tables.groups, g, configuration), rel=1e-9
    )


@given(st.data(), st.sampled_from(MODELS), st.sampled_from(CLUSTERS), OPTIONS)
def test_edges_are_what_a_recount_finds(
    data: st.DataObject, model: str, where: str, options: dict[str, bool]
) -> None:
    tables = table(model, where, **options)
    pairs = sorted({(e.source, e.target) for e in tables.edges})
    g, h = data.draw(st.sampled_from(pairs))
    i = data.draw(st.integers(0, len(tables.configurations[g]) - 1))
    j = data.draw(st.integers(0, len(tables.configurations[h]) - 1))
    cost = sum(float(e.cost[i, j]) for e in tables.edges if (e.source, e.target) == (g, h))
    recount = Recount(small(model)[1], machine(where))
    assert cost == pytest.approx(recount.between_groups(tables, g, i, h, j), rel=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_all_values_between_groups_are_in_the_tables(model: str) -> None:
    graph, tables = small(model)[1], table(model, "p100:2x2", powers_of_two=True, reduction=False)
    group_of = group_indices(tables.groups)
    made_by = {o: op.name for op in graph.ops for o in op.outputs}
    pairs = {
        (group_of[made_by[name]], group_of[op.name])
        for op in graph.ops
        for name in op.inputs
        if op.name in group_of and name in made_by and made_by[name] in group_of
    }
    assert {(e.source, e.target) for e in tables.edges} == {(g, h) for g, h in pairs if g != h}


# -- choices -------------------------------------------------------------------------------------


def exhaustive(tables: Tables) -> float:
    """The least cost of all choices, by enumeration; a loop over the first node, arrays over the others."""
    others = range(1, len(tables.nodes))

    def spread(values: np.ndarray, *axes: int) -> np.ndarray:
        """A view of costs with one dimension for each node after the first."""
        transposed = values if list(axes) == sorted(axes) else values.T
        return transposed.reshape([len(tables.nodes[g]) if g in axes else 1 for g in others])

    shared = np.zeros([len(tables.nodes[g]) for g in others])
    for g in others:
        shared += spread(tables.nodes[g], g)
    for g, h, cost in tables.edges:
        if 0 not in (g, h):
            shared += spread(cost, g, h)
    least = math.inf
    for x, node_cost in enumerate(tables.nodes[0]):
        total = shared + node_cost
        for g, h, cost in tables.edges:
            if 0 in (g, h):
                total += spread(cost[x] if g == 0 else cost[:, x], g or h)
        least = min(least, float(total.min()))
    return least


@pytest.mark.parametrize("paper", [False, True])
@pytest.mark.parametrize(
    ("model", "where"),
    [("mlp-tiny", "p100:1x4"), ("mlp-tiny", "mixed"), ("lenet-tiny", "p100:1x2"),
     ("lenet-tiny", "p100:2x1")],
)  # fmt: skip
def test_no_choice_costs_less(model: str, where: str, paper: bool) -> None:
    tables = table(model, where, paper=paper, powers_of_two=False)
    choices = math.prod(len(node) for node in tables.nodes)
    assert 100 < choices <= 200_000
    assert choose_configurations(tables)[1].cost == pytest.approx(exhaustive(tables), rel=1e-6)


@pytest.mark.parametrize("paper", [False, True])
def test_no_choice_for_lenet_on_four_devices_costs_less(paper: bool) -> None:
    """All eleven million choices are added up."""
    work = zoo.load("lenet", batch=64)
    graph = capture(work.model, work.batch, work.loss)
    tables = build_tables(graph, cluster("p100:1x4"), paper=paper)
    assert math.prod(len(node) for node in tables.nodes) > 1e7
    chosen, solution = choose_configurations(tables)
    assert solution.certified
    assert solution.cost == pytest.approx(exhaustive(tables), rel=1e-6)
    assert [
        configurations[x]
        for configurations, x in zip(tables.configurations, solution.choice, strict=True)
    ] == chosen


def test_layers_that_are_alike_share_their_tables() -> None:
    tables = table("resnet110-tiny", "p100:2x2")
    assert len({id(e.cost) for e in tables.edges}) < 0.7 * len(tables.edges)


def test_less_exposed_synchronisation_changes_the_nodes_alone() -> None:
    tables = table("lenet-tiny", "p100:2x2")
    half = tables.with_exposed(0.5)
    assert half.edges is tables.edges
    for all_, halved, compute, sync in zip(
        tables.nodes, half.nodes, tables.compute, tables.sync, strict=True
    ):
        np.testing.assert_allclose(all_, compute + sync)
        np.testing.assert_allclose(halved, compute + sync / 2)


def test_pins_leave_what_they_allow() -> None:
    graph, where = small("lenet-tiny")[1], machine("p100:2x2")

    def by_sample(group: Group, configuration: Configuration) -> bool:
        return all(
            q == 1 or x == "n" for x, q in zip(group.letters, configuration.degrees, strict=True)
        )

    free, pinned = build_tables(graph, where), build_tables(graph, where, allowed=by_sample)
    for g, configurations in enumerate(pinned.configurations):
        at = [free.configurations[g].index(c) for c in configurations]
        assert all(by_sample(pinned.groups[g], c) for c in configurations)
        np.testing.assert_array_equal(pinned.nodes[g], free.nodes[g][at])
    for cut, edge in zip(pinned.edges, free.edges, strict=True):
        rows = [
            free.configurations[edge.source].index(c) for c in pinned.configurations[edge.source]
        ]
        columns = [
            free.configurations[edge.target].index(c) for c in pinned.configurations[edge.target]
        ]
        np.testing.assert_array_equal(cut.cost, edge.cost[np.ix_(rows, columns)])
    assert choose_configurations(pinned)[1].cost >= choose_configurations(free)[1].cost
    with pytest.raises(InputError, match=r"no configuration of 'features\.0' is allowed"):
        build_tables(graph, where, allowed=lambda group, configuration: False)


def test_what_was_measured_comes_before_what_is_estimated() -> None:
    graph, where = small("lenet-tiny")[1], machine("p100:1x4")
    plain = build_tables(graph, where)
    op = graph.op("classifier.4")
    g = group_indices(plain.groups)[op.name]
    x = plain.configurations[g].index(Configuration((2, 1, 1), (0, 1)))
    box = tiles(plain.groups[g], plain.configurations[g][x])[op.name].boxes[0]
    compute = ComputeCosts(graph, active_values(graph))
    seconds = compute.seconds(op, box, "F", where.devices[0])
    profile = Profile({profile_key(op, box, "F", None, "p100"): seconds + 1.0})
    measured = build_tables(graph, where, profile=profile)
    assert measured.compute[g][x] == pytest.approx(plain.compute[g][x] + 1.0)
    assert sum((a != b).sum() for a, b in zip(measured.compute, plain.compute, strict=True)) == 1


# -- many devices --------------------------------------------------------------------------------


def test_some_nodes_stand_for_many() -> None:
    few, many = cluster("p100:16x4"), cluster("p100:64x4")
    assert list(sampled_devices(few)) == list(range(64))
    nodes = {many.devices[d].node for d in sampled_devices(many)}
    assert len(sampled_devices(many)) == 64
    assert {0, 63} < nodes
    assert list(sampled_devices(many, all_devices=True)) == list(range(256))


def test_sampled_devices_take_no_longer_than_all(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, where = small("mlp-tiny")[1], cluster("p100:32x4")
    sampled = build_tables(graph, where)
    monkeypatch.setattr("raddle.searches.optcnn.transfers.SAMPLED_DEVICES", 128)
    all_devices = build_tables(graph, where)
    for a, b in zip([*sampled.nodes, *(e.cost for e in sampled.edges)],
                    [*all_devices.nodes, *(e.cost for e in all_devices.edges)], strict=True):  # fmt: skip
        assert (a <= b * (1 + 1e-6)).all()
        assert (a >= b * (1 - 1e-6)).mean() > 0.95


# -- plans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", CLUSTERS)
@pytest.mark.parametrize("model", MODELS)
def test_plans_are_plans(model: str, where: str) -> None:
    graph, machines = small(model)[1], machine(where)
    for tilings in (
        plan_for(graph, machines, "optcnn").tiles,
        optcnn_paper(graph, machines, powers_of_two=False)[0],
    ):
        plan = Plan(tilings, len(machines.devices), bn="local")
        validate(plan, graph)
        check(lower(graph, plan))


@given(st.data(), st.sampled_from(MODELS))
def test_any_configurations_make_a_plan(data: st.DataObject, model: str) -> None:
    graph, tables = small(model)[1], table(model, "p100:2x2", powers_of_two=False, reduction=True)
    chosen = [
        data.draw(st.sampled_from(configurations)) for configurations in tables.configurations
    ]
    plan = Plan(plan_tiles(graph, machine("p100:2x2"), tables.groups, chosen), 4, bn="local")
    validate(plan, graph)
    check(lower(graph, plan))


def evaluated(graph: Graph, on: Cluster, tiles: Mapping[str, Tiling]) -> int | None:
    return Evaluator(graph, on, Plan(tiles, len(on.devices), bn="local")).time()


def test_the_fastest_plan_of_several_is_taken() -> None:
    graph, where = small("mlp-tiny")[1], machine("p100:2x2")
    tables = build_tables(graph, where)
    times = []
    for exposed in EXPOSED_SHARES:
        chosen, _ = choose_configurations(tables.with_exposed(exposed))
        times.append(evaluated(graph, where, plan_tiles(graph, where, tables.groups, chosen)))
    assert evaluated(graph, where, plan_for(graph, where, "optcnn").tiles) == min(times)


class Layer(nn.Module):
    """One fully connected layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(640, 320, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


@pytest.mark.parametrize(("where", "bandwidth"), [("p100:1x4", 40e9), ("p100:4x4", 12.5e9)])
def test_a_server_moves_parameters_twice_for_every_copy(where: str, bandwidth: float) -> None:
    graph = capture(Layer(), (torch.zeros(64, 640),), supervised(lambda y: y.sum(), targets=0))
    machines = cluster(where)
    count = len(machines.devices)
    tables = build_tables(graph, machines, paper=True)
    (group,), (configurations,) = tables.groups[:1], tables.configurations[:1]
    nbytes = 640 * 320 * 4

    def sync(**split: int) -> float:
        degrees = tuple(split.get(letter, 1) for letter in group.letters)
        return float(tables.sync[0][[c.degrees for c in configurations].index(degrees)])

    assert sync(n=count) == pytest.approx(2 * nbytes * count / bandwidth)  # data parallel
    assert sync(c=count) == pytest.approx(2 * nbytes / bandwidth)
    assert sync(n=2, c=count // 2) == pytest.approx(2 * nbytes * 2 / bandwidth)
