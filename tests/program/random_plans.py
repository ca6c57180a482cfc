"""Random legal plans for tests, and training with plain PyTorch to compare a run with."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from raddle.clusters import Cluster, cluster
from raddle.clusters.topology import build_cluster
from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op
from raddle.plans.plan import Plan
from raddle.plans.sync import KINDS, read_sync
from raddle.plans.sync.sync_kind import NUMBER
from raddle.plans.tiling import Grid, Irregular, Tile, Tiling, even_cuts, uneven_cuts
from raddle.program.lower import lower

# Sync kinds that compute the same as the plain module, one of each.
SYNCS = [
    "allreduce", "server", "sharded", "sharded:parameters", "sharded,group=2",
    "sharded:parameters,group=2", "ps:one", "ps:sliced", "p3:slice=5", "p3:collective",
]  # fmt: skip


def cluster_named(name: str) -> Cluster:
    """A cluster by name; `host_overhead:4` has four CPUs with different host overheads."""
    if name != "host_overhead:4":
        return cluster(name)
    plain = cluster("local:4")
    all_overheads = [
        {"message": 2e-5, "slice": 1e-5, "byte": 1e-9, "sum": 5e-5, "collective": 1.0},
        {"message": 3e-5, "byte": 2e-9},
        {"sum": 1e-4, "collective": 0.3},
        {},
    ]
    devices = [
        replace(plain.devices[0], kind=f"cpu {n}", host_overhead=overheads)
        for n, overheads in enumerate(all_overheads)
    ]
    return build_cluster(name, [(devices, plain.node_links[0], None)])


def random_tiling(op: Op, devices: int, rng: random.Random) -> Tiling:
    """A random tiling: not split, copies, an even or uneven grid, or irregular boxes."""
    kind = rng.choice(["whole", "copies", "even", "even", "uneven", "irregular"])
    shape = [d.size for d in op.space.dims]
    full = tuple((0, s) for s in shape)
    if kind == "whole":
        return Grid(full, (rng.randrange(devices),))
    if kind == "copies":
        chosen = rng.sample(range(devices), rng.randint(1, devices))
        return Grid(full, tuple(chosen), len(chosen))
    if kind == "irregular":
        return Irregular(tuple(Tile(b, rng.randrange(devices)) for b in _random_boxes(op, rng)))
    cuts = list(full)
    splittable = [d for d, dim in enumerate(op.space.dims) if not dim.unsplittable and dim.size > 1]
    for d in rng.sample(splittable, min(len(splittable), rng.randint(1, 2))):
        if kind == "even":
            cuts[d] = even_cuts(shape[d], rng.randint(2, min(3, shape[d])))
        else:
            at = rng.randint(1, shape[d] - 1)
            cuts[d] = uneven_cuts([at, shape[d] - at])
    count = 1
    for c in cuts:
        count *= len(c) - 1
    return Grid(tuple(cuts), tuple(rng.randrange(devices) for _ in range(count)))


def _random_boxes(op: Op, rng: random.Random) -> list[Box]:
    boxes = [op.space.full]
    for _ in range(3):
        i = rng.randrange(len(boxes))
        box = boxes[i]
        splittable = [
            d for d, dim in enumerate(op.space.dims) if not dim.unsplittable and box.shape[d] > 1
        ]
        if splittable:
            d = rng.choice(splittable)
            at = rng.randrange(box.lo[d] + 1, box.hi[d])
            boxes[i : i + 1] = [
                Box(box.lo, (*box.hi[:d], at, *box.hi[d + 1 :])),
                Box((*box.lo[:d], at, *box.lo[d + 1 :]), box.hi),
            ]
    return boxes


def repeated(tiling: Tiling, size: int) -> Tiling:
    """The tiling with `size` consecutive devices in place of each device; they have copies of its tiles."""

    def group(device: int) -> range:
        return range(size * device, size * (device + 1))

    if isinstance(tiling, Irregular):
        return Irregular(tuple(Tile(t.box, d) for t in tiling.tiles for d in group(t.device)))
    devices = tuple(d for device in tiling.devices for d in group(device))
    return Grid(tiling.cuts, devices, tiling.copies * size)


def random_sync(devices: int, rng: random.Random) -> str:
    """A random sync kind that computes the same as the plain module; all-reduce more often."""
    device = rng.randrange(devices)
    return rng.choice(
        ["allreduce", "allreduce", "server", f"server:{device}", "sharded", "sharded:parameters",
         "p3:slice=20", f"ps:{device},sliced", "ps:greedy,slice=50", "p3:collective,slice=20",
         "allreduce:after", "ps:slice=50,after", "sharded,group=2", "sharded:after,group=2",
         "sharded:parameters,group=2"]
    )  # fmt: skip


def every_sync() -> list[str]:
    """Every sync kind, without options and with each of its options."""
    words = [
        (kind, word.replace(NUMBER, "1"))
        for kind, sync_kind in KINDS.items()
        for word in sync_kind.option_patterns
    ]
    texts = [f"{kind}:{word}" for kind, word in words]
    return [
        *KINDS,
        *(t.replace("slice=1", "slice=99").replace("group=1", "group=2") for t in texts),
    ]


def sync_texts(devices: int) -> st.SearchStrategy[str]:
    """Any valid `plan.sync`: every kind, with up to two of its options."""
    return st.sampled_from(sorted(KINDS)).flatmap(
        lambda kind: st.lists(_options(kind, devices), max_size=2).map(
            lambda words: f"{kind}:{','.join(words)}".removesuffix(":")
        )
    ).filter(_is_sync)  # fmt: skip


def _options(kind: str, devices: int) -> st.SearchStrategy[str]:
    def text_of(word: str) -> st.SearchStrategy[str]:
        limits = {
            NUMBER: (0, devices - 1),
            f"ssp={NUMBER}": (0, 3),
            f"group={NUMBER}": (2, devices),
        }
        least, most = limits.get(word, (50, 999))
        return st.integers(least, most).map(lambda number: word.replace(NUMBER, str(number)))

    return st.sampled_from(KINDS[kind].option_patterns).flatmap(text_of)


def _is_sync(text: str) -> bool:
    try:
        read_sync(text)
    except InputError:  # options that contradict each other
        return False
    return True


def random_plan(graph: Graph, devices: int, seed: int, **settings: Any) -> Plan:
    """A random plan. If its sync has groups of N devices, N consecutive devices have the same tiles."""
    rng = random.Random(seed)
    size = read_sync(settings.get("sync", "allreduce")).group_size
    if size:
        tiles = {
            op.name: repeated(random_tiling(op, devices // size, rng), size)
            if devices >= size
            else Grid(tuple((0, d.size) for d in op.space.dims), (0,))
            for op in graph.ops
        }
    else:
        tiles = {op.name: random_tiling(op, devices, rng) for op in graph.ops}
    if settings.get("microbatches", 1) > 1:
        settings.setdefault("bn", "microbatch")
    settings.setdefault("bucket", rng.choice([0, 1000, 10**6]))
    split = rng.random() < 0.3
    zero3 = read_sync(settings.get("sync", "allreduce")).zero3
    settings.setdefault("split_backward", split and not zero3)
    if rng.random() < 0.4:
        settings.setdefault("recompute", random_blocks(graph, rng))
    if rng.random() < 0.5:
        settings.setdefault("sums", random_sums(graph, tiles, devices, rng))
    return with_random_order(graph, Plan(tiles, devices, **settings), rng)


def with_legal_group(graph: Graph, plan: Plan) -> Plan:
    """The plan, without groups of holders if its tiles do not allow those that its sync asks for."""
    if not plan.parsed_sync.group_size:
        return plan
    try:
        lower(graph, replace(plan, steps=1))
    except InputError as error:
        if "do not divide" in str(error):  # other plans that cannot be lowered stay as they are
            return replace(plan, sync=re.sub("[:,]group=[0-9]+", "", plan.sync))
    return plan


def with_random_order(graph: Graph, plan: Plan, rng: random.Random) -> Plan:
    """With `p3:collective`: the plan with a random order of sums, or without one."""
    plan = replace(plan, order=())
    if not plan.parsed_sync.collective or rng.random() < 0.3:
        return plan
    count = len(lower(graph, replace(plan, steps=1)).bundles)
    return replace(plan, order=tuple(rng.sample(range(count), count)))


def random_sums(
    graph: Graph, tiles: dict[str, Tiling], devices: int, rng: random.Random
) -> dict[str, Tiling]:
    """For some operators with partial results, random devices that sum them."""
    sums: dict[str, Tiling] = {}
    for op in graph.ops:
        partial = op.space.combine and any(op.space.is_partial(b) for b in tiles[op.name].boxes)
        if not partial or rng.random() < 0.4:
            continue
        cuts = [(0, dim.size) for dim in op.space.dims]
        unsummed = [d for d in range(len(cuts)) if d not in op.space.reduced_dims]
        splittable = [
            d for d in unsummed if not op.space.dims[d].unsplittable and op.space.dims[d].size > 1
        ]
        if splittable:
            d = rng.choice(splittable)
            cuts[d] = even_cuts(op.space.dims[d].size, 2)
        count = 2 if splittable else 1
        sums[op.name] = Grid(tuple(cuts), tuple(rng.randrange(devices) for _ in range(count)))
    return sums


def random_blocks(graph: Graph, rng: random.Random) -> tuple[tuple[str, ...], ...]:
    """Random blocks of consecutive operators to recompute, with gaps."""
    blocks, at = [], 0
    while at < len(graph.ops):
        size = rng.randint(1, max(1, len(graph.ops) // 3))
        if rng.random() < 0.7:
            blocks.append(tuple(op.name for op in graph.ops[at : at + size]))
        at += size
    return tuple(blocks)


def train_plain(
    model: nn.Module,
    loss: Callable[..., Tensor],
    batches: Sequence[Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]]],
    optimizer: Callable[[Any], torch.optim.Optimizer],
) -> tuple[list[float], dict[str, Tensor]]:
    """Trains the unmodified module with PyTorch: losses, and the parameters and buffers at the end.

    batches: by step and micro-batch, inputs and targets.
    """
    model = copy.deepcopy(model)
    opt = optimizer(list(model.parameters()))
    losses = []
    for micro_batches in batches:
        opt.zero_grad()
        total = 0.0
        for inputs, targets in micro_batches:
            value = loss(model(*inputs), *targets) / len(micro_batches)
            value.backward()
            total += value.item()
        opt.step()
        losses.append(total)
    return losses, {k: v.detach() for k, v in model.state_dict(keep_vars=True).items()}
