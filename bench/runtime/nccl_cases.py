"""The cases of nccl_equal.py: a module, and plans for 2 to 4 ranks that use every kind of communication.

Plans are made here by simple rules, so that a machine needs torch alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raddle.errors import InputError
from raddle.graph.graph import Graph, Op
from raddle.plans.plan import Plan
from raddle.plans.sync import KINDS, read_sync
from raddle.plans.sync.sync_kind import NUMBER
from raddle.plans.tiling import Grid, Tiling, even_cuts

BATCH = 12  # samples of a step: can be divided by 2, 3 and 4 ranks
MICROBATCHES = 4
EXACT = 1e-9  # relative deviation in float64
COMPRESSED = 1e-2  # if gradients are sent in bfloat16 or float16

Splits = Mapping[str, int]  # letter of a dimension -> into how many parts it is split


class Net(nn.Module):
    """x[n 2 8 8] -> two convolutions with batch norm -> two linear layers -> y[n 12]"""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(2, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.conv2, self.norm2 = nn.Conv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.fc1, self.fc2 = nn.Linear(12 * 8 * 8, 24), nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x))).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


def batch(device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the inputs and targets of a step, the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, 2, 8, 8, generator=generator, dtype=torch.float64)
    return x.to(device), torch.randint(12, (BATCH,), generator=generator).to(device)


def module(device: torch.device) -> nn.Module:
    """Returns the module, with the same parameters on every rank."""
    torch.manual_seed(0)
    return Net().double().to(device)


loss = F.cross_entropy


@dataclass(frozen=True)
class Case:
    """A plan by a rule. make: called with the graph of a micro-batch and the number of ranks."""

    name: str
    make: Callable[[Graph, int], Plan] = field(compare=False)
    microbatches: int = 1
    tolerance: float = EXACT


def cases(ranks: int) -> Iterator[Case]:
    """Yields the cases for a number of ranks, the most important first."""
    for schedule in ("gpipe", "1f1b", "zb-h1"):
        yield Case(f"pipeline, {schedule}", partial(_pipeline, schedule=schedule), MICROBATCHES)
    yield from _tilings(ranks)
    for sync in syncs(ranks):
        tolerance = COMPRESSED if read_sync(sync).wire_dtype else EXACT
        yield Case(f"data, {sync}", partial(_data, sync=sync), tolerance=tolerance)
    if ranks == 4:
        for schedule in ("gpipe", "1f1b", "zb-h1"):
            make = partial(_pipeline, schedule=schedule, width=2)
            yield Case(f"pipeline x data, {schedule}", make, MICROBATCHES)
        for sync in ("sharded", "sharded:parameters", "p3:collective", "ps:sliced"):
            make = partial(_pipeline, schedule="1f1b", width=2, sync=sync)
            yield Case(f"pipeline x data, 1f1b, {sync}", make, MICROBATCHES)
        for sync in ("allreduce", "sharded", "sharded:parameters"):
            make = partial(_split, letters={"n": 2, "c": 2}, sync=sync)
            yield Case(f"data x filters, {sync}", make)


def syncs(ranks: int) -> list[str]:
    """Returns every sync kind with each of its options, but those that compute something else.

    Servers without a barrier let ranks be some steps apart. NCCL does not send the messages of servers, so
    more than two ranks have each kind with servers once.
    """
    texts = [*KINDS, "sharded:parameters,group=2"]
    for kind, declaration in KINDS.items():
        for pattern in declaration.option_patterns:
            option = re.sub(re.escape(NUMBER), lambda _: "1", pattern)
            texts.append(
                f"{kind}:{option}".replace("slice=1", "slice=50").replace("group=1", "group=2")
            )
    return [
        text
        for text in texts
        if _is_synchronous(text)
        and (ranks == 2 or text in KINDS or not _has_servers(text))
        and not (ranks == 3 and "group=2" in text)
    ]


def _is_synchronous(text: str) -> bool:
    try:
        return read_sync(text).synchronous
    except InputError:  # an option that needs another one
        return False


def _has_servers(text: str) -> bool:
    sync = read_sync(text)
    return sync.has_servers and not sync.shards


# -- plans ---------------------------------------------------------------------------------------------


def _tilings(ranks: int) -> Iterator[Case]:
    """Yields tilings whose messages form all kinds of collectives."""
    for name, letters in {
        "spatial (halo exchange)": {"h": ranks},
        "filters": {"c": ranks},
        "channels (partial sums)": {"k": ranks},
    }.items():
        yield Case(name, partial(_split, letters=letters))
    samples_and_filters: list[Splits] = [{"n": ranks}, {"c": ranks}]
    yield Case("samples and filters in turn", partial(_in_turn, letters=samples_and_filters))
    yield Case("samples and one rank in turn", partial(_in_turn, letters=[{"n": ranks}, {}]))
    yield Case("copies and one rank in turn", _copies_in_turn)
    yield Case("one rank after the other", _rank_by_rank)


def _plan(graph: Graph, tiles: Mapping[str, Tiling], ranks: int, **settings: object) -> Plan:
    # Small buckets and slices: there are several of each.
    fixed = {"bn": "global", "bucket": 4096, "optimizer": "momentum"}  # that of nccl_equal.py
    return Plan(tiles, ranks, **fixed | settings)  # type: ignore[arg-type]


def _data(graph: Graph, ranks: int, *, sync: str) -> Plan:
    return _split(graph, ranks, letters={"n": ranks}, sync=sync)


def _split(graph: Graph, ranks: int, *, letters: Splits, sync: str = "allreduce") -> Plan:
    tiles = {op.name: split(op, letters, range(ranks)) for op in graph.ops}
    return _plan(graph, tiles, ranks, sync=sync)


def _in_turn(graph: Graph, ranks: int, *, letters: Sequence[Splits]) -> Plan:
    """Operators with a parameter, and what follows them, are split along one and another letter."""
    tiles, layers = {}, 0
    for op in graph.ops:
        layers += any(graph.values[name].role == "parameter" for name in op.inputs)
        chosen = letters[layers % len(letters)]
        tiles[op.name] = split(op, chosen, range(ranks if chosen else 1))
    return _plan(graph, tiles, ranks)


def _copies_in_turn(graph: Graph, ranks: int) -> Plan:
    """Operators are computed on every rank, and by the last rank alone, in turn."""
    tiles = {
        op.name: split(op, {}, range(ranks) if number % 4 < 2 else (ranks - 1,))
        for number, op in enumerate(graph.ops)
    }
    return _plan(graph, tiles, ranks)


def _rank_by_rank(graph: Graph, ranks: int) -> Plan:
    """Every operator is on another rank than the one before, so every kind of value is sent."""
    tiles = {op.name: split(op, {}, (number % ranks,)) for number, op in enumerate(graph.ops)}
    return _plan(graph, tiles, ranks)


def _pipeline(
    graph: Graph, ranks: int, *, schedule: str, width: int = 1, sync: str = "allreduce"
) -> Plan:
    """Stages of equal numbers of operators, each on `width` ranks that divide the samples."""
    count = ranks // width
    names = [op.name for op in graph.ops]
    stages = tuple(tuple(names[a:b]) for a, b in pairwise(even_cuts(len(names), count)))
    tiles = {
        name: split(graph.op(name), {"n": width}, range(s * width, (s + 1) * width))
        for s, stage in enumerate(stages)
        for name in stage
    }
    return _plan(
        graph, tiles, ranks, sync=sync, stages=stages, schedule=schedule, bn="microbatch",
        microbatches=MICROBATCHES, split_backward=schedule.startswith("zb"),
    )  # fmt: skip


def split(op: Op, letters: Splits, devices: Sequence[int]) -> Tiling:
    """Returns an even split along the letters that the operator has; without any, copies on the devices."""
    cuts, count = [], 1
    for dim in op.space.dims:
        parts = letters.get(dim.name, 1)
        splittable = not dim.unsplittable and dim.size >= parts and count * parts <= len(devices)
        cuts.append(even_cuts(dim.size, parts if splittable else 1))
        count *= len(cuts[-1]) - 1
    if len(devices) % count:
        return Grid(tuple(cuts), tuple(devices[:count]))
    return Grid(tuple(cuts), tuple(devices), len(devices) // count)
