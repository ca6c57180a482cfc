"""The plan: for every operator its tiles, and how the step around them is organised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raddle.graph.graph import Graph
from raddle.plans.sync import Sync, read_sync
from raddle.plans.tiling import Tiling

DEFAULT_BUCKET = 16 * 2**20  # bytes
BN_SCOPES = ("global", "local", "microbatch")


@dataclass(frozen=True)
class Plan:
    """Tiles on devices, and all that is needed to simulate, run or verify them.

    `bn` says which samples batch statistics are taken over: `global`, all of the batch (exact),
    `microbatch`, all of a micro-batch, or `local`, those of a tile (as DistributedDataParallel does).
    `sync` says how copies of a parameter agree (plans/sync/). Gradients are all-reduced in buckets of
    at least `bucket` bytes. With `p3:collective`, `order` are the numbers of all slices in the order in
    which their sums leave, on every device; without it they leave as gradients become complete.
    `recompute` lists blocks of operators whose values are not kept for the backward but computed again,
    block by block. With `split_backward` gradients of parameters come after those of activations, which
    others wait for. `sums` says where the partial results of an operator are summed: tiles that leave no
    summed dimension apart. An operator that is not in it has its result divided among the devices that
    have parts.

    `stages` divides the operators into stages, and `schedule` says in which order each worker runs stages
    of micro-batches: a name of plans/schedules/, or rows of text; without one, micro-batches follow each
    other. `workers` are the devices of each row; a stage that has several rows has a replica in each
    (plans/pipelining.py). "threaded:4" has four steps under way at once, whatever the tiles.
    """

    tiles: Mapping[str, Tiling]
    devices: int
    bn: str = "global"
    sync: str = "allreduce"
    bucket: int = DEFAULT_BUCKET
    order: tuple[int, ...] = ()
    microbatches: int = 1
    recompute: tuple[tuple[str, ...], ...] = ()
    split_backward: bool = False
    sums: Mapping[str, Tiling] = field(default_factory=dict)
    stages: tuple[tuple[str, ...], ...] = ()
    schedule: str = ""
    workers: tuple[tuple[int, ...], ...] = ()
    steps: int = 1  # how many steps a program holds; a simulation needs several
    model: str = ""
    fingerprint: str = ""
    batch: int = 0  # global
    dtype: str = "float32"
    optimizer: str = "sgd"
    cluster: Mapping[str, Any] | None = None
    method: str = ""
    inputs: tuple[Mapping[str, Any], ...] = ()  # of a micro-batch; see `describe_inputs`
    parameters: Mapping[str, Sequence[int]] = field(default_factory=dict)  # names and shapes
    predicted: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parsed_sync(self) -> Sync:
        return read_sync(self.sync)

    @property
    def server(self) -> int | None:
        """The device that is the home of all parameters, if one is named."""
        return self.parsed_sync.server


def describe_inputs(graph: Graph) -> tuple[Mapping[str, Any], ...]:
    """Names, shapes and types of what a step takes, so that a rank can capture the module again."""
    names = [n for n in graph.inputs if graph.values[n].role == "input"]
    first_target = len(graph.inputs) - graph.target_count
    return tuple(
        {
            "name": name,
            "shape": list(graph.values[name].shape),
            "dtype": str(graph.values[name].dtype).removeprefix("torch."),
            "letters": graph.values[name].letters,
            "target": graph.inputs.index(name) >= first_target,
            "keyword": graph.takes_keywords and graph.inputs.index(name) < first_target,
        }
        for name in names
    )


def parameter_shapes(graph: Graph) -> dict[str, list[int]]:
    return {p.name: list(p.shape) for p in graph.parameters}
