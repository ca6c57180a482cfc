"""Finds the largest batch that fits with each method, and what would have to change for a batch to fit.

A batch fits if the simulated peak of every device is at most its memory. Batches are multiples of the
number of devices, so that every device gets as many samples.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raddle.api.graphs import Model
from raddle.api.planning import (
    canonical_name,
    capture_reporting,
    ignore_progress,
    plan_and_predict,
    read_search_settings,
)
from raddle.clusters import Cluster, compiled, presets
from raddle.clusters import cluster as find_cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.graph.supervised import Loss
from raddle.searches.settings import OnProgress, Settings

__all__ = ["METHODS", "Capacity", "capacity"]

METHODS = ("data", "zero2", "fsdp")  # if none are named
MOST_SAMPLES = 2**16  # of a device: the search ends there
PRECISION = 64  # the search ends when batches differ by less than this fraction: 1/64
RECOMPUTED = (2, 4, 8, 16, 32)  # numbers of blocks that are tried
FACTORS = (2, 4, 8)  # by which the number of devices is multiplied


@dataclass(frozen=True)
class Capacity:
    """The largest batch of a method; batch 0: not even one sample on each device fits."""

    method: str
    batch: int = 0
    peak_bytes: int = 0  # at that batch, of the device that needs most
    memory: int = 0  # bytes of that device
    samples_per_s: float = 0.0
    needed: str = (
        ""  # what the wanted batch needs to fit: "nothing", or changes; "" if none was asked for
    )
    error: str = ""  # why the method gave no plan

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain data."""
        return asdict(self)


def capacity(
    model: Model,
    batch: Any = None,
    loss: Loss | None = None,
    *,
    cluster: Cluster | str | os.PathLike[str],
    methods: Sequence[str] = METHODS,
    wanted: int | None = None,
    precision: str = "float32",
    optimizer: str = "sgd",
    compile: bool = False,
    bn: str = "local",
    budget: float = 5.0,
    on_progress: OnProgress | None = None,
) -> list[Capacity]:
    """Returns the largest batch of each method, within 1/64.

    model, batch, loss: as in `raddle.plan`; the batch is an example of any size. wanted: a number of
    samples; the result then says what they need to fit: recomputation of activations, or more devices.
    compile: with torch.compile. budget: seconds for each plan of a method that searches. All other
    arguments are those of `raddle.plan`.

    >>> (result,) = capacity("mlp-tiny", cluster="local:2", methods=["data"], wanted=8)
    >>> result.batch >= 8, result.needed
    (True, 'nothing')
    """
    names = list(dict.fromkeys(map(canonical_name, methods)))
    settings = read_search_settings(
        names, bn=bn, sync="auto", precision=precision, optimizer=optimizer, budget=budget, seed=0,
        pins=(), reduction=None, profile=None,
    )  # fmt: skip
    if wanted is not None and wanted < 1:
        raise InputError(f"a batch of {wanted} samples is wanted: ask for at least one.")
    where, report = find_cluster(cluster), on_progress or ignore_progress
    where = compiled(where) if compile else where
    graph, _ = capture_reporting(model, batch, loss, report)
    results = []
    for done, name in enumerate(names):
        report({"step": name, "done": done, "of": len(names)})
        try:
            results.append(_of_method(graph, where, name, settings, wanted))
        except InputError as error:
            results.append(Capacity(name, error=str(error)))
    return results


@dataclass(frozen=True)
class _Trial:
    """A simulated plan: its peak, of the device that needs most of its memory."""

    batch: int
    peak_bytes: int
    memory: int
    samples_per_s: float

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.memory


def _of_method(
    graph: Graph, cluster: Cluster, method: str, settings: Settings, wanted: int | None
) -> Capacity:
    """Returns the largest batch of a method, and what a wanted batch needs."""
    devices = len(cluster.devices)
    largest = _largest(lambda samples: _try(graph, cluster, method, settings, samples * devices))
    needed = "" if wanted is None else _needed(graph, cluster, method, settings, wanted)
    if largest is None:
        return Capacity(method, memory=cluster.devices[0].memory, needed=needed)
    return Capacity(
        method, largest.batch, largest.peak_bytes, largest.memory, largest.samples_per_s, needed
    )


def _try(
    graph: Graph, cluster: Cluster, method: str, settings: Settings, batch: int,
    recompute: int | None = None,
) -> _Trial:  # fmt: skip
    """Simulates a method's plan for a batch. recompute: in how many blocks; None: as the method does."""
    from raddle.simulation.memory.peaks import peak_bytes  # imports numba

    evaluated = plan_and_predict(
        graph.for_batch(batch), cluster, method, settings=settings, recompute=recompute
    )
    peaks = peak_bytes(evaluated.timeline)
    memory = [device.memory for device in cluster.devices]
    fullest = max(range(len(peaks)), key=lambda d: peaks[d] / memory[d])
    return _Trial(batch, peaks[fullest], memory[fullest], evaluated.row["samples_per_s"])


def _largest(attempt: Callable[[int], _Trial]) -> _Trial | None:
    """Returns the largest trial that fits; None if one sample does not. attempt: takes samples of a device.

    Memory grows almost linearly with the batch: the next size to try is where the line through the last two
    trials meets the memory, if that lies between the largest that fits and the smallest that does not.
    Every other size is their geometric mean, as memory may also jump.
    """
    best = attempt(1)
    if not best.fits:
        return None
    low, high, last = 1, MOST_SAMPLES, best
    size, bisects = 2, True
    while high - low > max(1, low // PRECISION):
        trial = attempt(size)
        low, high = (size, high) if trial.fits else (low, size)
        best = trial if trial.fits else best
        slope = (trial.peak_bytes - last.peak_bytes) / (trial.batch - last.batch or 1)
        guess = 2 * size
        if slope > 0:
            per_sample = slope * trial.batch / size  # bytes for one more sample on every device
            guess = size + int((trial.memory - trial.peak_bytes) / per_sample)
        bisects = not bisects
        last, size = (
            trial,
            min(max(math.isqrt(low * high) if bisects else guess, low + 1), high - 1),
        )
    return best


def _needed(graph: Graph, cluster: Cluster, method: str, settings: Settings, wanted: int) -> str:
    """Returns what a batch needs to fit: "nothing", recomputation, more devices, or both."""
    for devices in (cluster, *_larger(cluster)):
        count = len(devices.devices) - len(cluster.devices)
        more = [f"{count} more devices"] if count else []
        for blocks in (None, *RECOMPUTED):
            if blocks is not None and blocks > len(graph.ops):
                continue
            try:
                trial = _try(graph, devices, method, settings, wanted, blocks)
            except InputError:  # fewer samples than devices, for example
                break
            if trial.fits:
                changes = [] if blocks is None else [f"recompute in {blocks} blocks"]
                return " and ".join([*more, *changes]) or "nothing"
    return f"more than {FACTORS[-1]} x the devices, or another method"


def _larger(cluster: Cluster) -> Iterable[Cluster]:
    """Yields the cluster with more nodes, if it is a preset of equal nodes other than this machine."""
    name, nodes = cluster.name.partition(":")[0], cluster.nodes
    per_node = len(cluster.devices) // nodes
    equal = all(len(cluster.members(node)) == per_node for node in range(nodes))
    if equal and name != "local" and name in {row["name"] for row in presets()}:
        for factor in FACTORS:
            larger = find_cluster(f"{name}:{factor * nodes}x{per_node}")
            yield compiled(larger) if cluster.devices[0].compile else larger
