"""Measures this machine as N ranks, or reads a cached measurement, and describes it as a cluster."""

from __future__ import annotations

import platform
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any

from raddle.clusters import catalogue
from raddle.clusters.devices import Device, Link
from raddle.clusters.topology import Cluster, build_cluster
from raddle.errors import InputError
from raddle.probe import cache
from raddle.probe.cpu_load import busy_cores
from raddle.probe.fit import fit
from raddle.probe.launch import Message, run

FORMAT = 2  # of cached measurements; to be increased when their meaning changes
MAX_RANKS = 64
FAMILIES = ("matmul", "conv", "attention")  # kinds of kernels with an efficiency of their own


def probe(
    ranks: int = 2,
    *,
    quick: bool = False,
    fresh: bool = False,
    on_progress: Callable[[Message], None] = lambda message: None,
) -> dict[str, Any]:
    """Measure the compute rates of `ranks` processes while all compute, and messages between them.

    The rates are those of one process: the median over all. Measurements are cached by host, number of
    cores, version of torch and `ranks`. fresh: ignore the cache. quick: take a few seconds and be less
    exact. on_progress: is called with {"step", "done", "of"} before each part. The result is a dict for
    `describe` and `raddle.probe.output.write`.
    """
    if not 1 <= ranks <= MAX_RANKS:
        raise InputError(f"{ranks} ranks cannot be probed: ask for 1 to {MAX_RANKS}.")
    key = _key(ranks, quick)
    if not fresh and (remembered := cache.recall(key)) is not None:
        return {**remembered, "cached": True}
    measured = _measure(ranks, quick=quick, on_progress=on_progress)
    cache.remember(key, measured)
    return {**measured, "cached": False}


def describe(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cluster of the ranks as a dict (see `Cluster.to_dict`).

    A GPU is listed as a kind of device, but no node of the cluster has it: the user may add it to one.
    """
    description = _cluster(measured).to_dict()
    gpu = measured["gpu"]
    if gpu is not None:
        device = _device(_slug(gpu["name"]), gpu)
        # A cluster of one node with this device, of which only the description of the device is used.
        description["devices"].update(
            build_cluster("gpu", [([device], None, None)]).to_dict()["devices"]
        )
    return description


def _key(ranks: int, quick: bool) -> str:
    """Return the key of a measurement in the cache."""
    mode = "quick" if quick else "full"
    cores = catalogue.cores()
    return f"{platform.node()}, {cores} cores, torch {version('torch')}, {ranks} ranks, {mode}, {FORMAT}"


def _measure(ranks: int, *, quick: bool, on_progress: Callable[[Message], None]) -> dict[str, Any]:
    """Run the processes of all ranks and, if there is a GPU, the one that measures it; see `probe`."""
    threads = max(1, catalogue.cores() // ranks)
    busy = busy_cores()
    # window: seconds for each kernel.
    common = {"ranks": ranks, "threads": threads, "quick": quick, "window": 0.1 if quick else 0.6}
    results = run(
        "raddle.probe.rank",
        [{**common, "rank": rank} for rank in range(ranks)],
        threads=threads,
        seconds=60 + 10 * ranks,
        on_progress=on_progress,
    )
    gpu = None
    if results[0]["gpus"]:
        on_progress({"step": "GPU", "done": 1, "of": 1})
        [gpu] = run("raddle.probe.gpu", [common], threads=catalogue.cores(), seconds=120)
        gpu = {key: gpu[key] for key in ("name", "count", "memory")} | _median_rates([gpu])
    return {
        "ranks": ranks,
        "cores": catalogue.cores(),
        "threads": threads,
        "torch": version("torch"),
        "busy_cores": busy,  # with other work, before the measurement
        "measured": datetime.now().astimezone().isoformat(timespec="seconds"),
        "memory": catalogue.memory() // ranks,
        **_median_rates(results),
        **_links(results[0], ranks),
        "host_overhead": _host_overhead(results) if ranks > 1 else {},
        "gpu": gpu,
    }


def _median_rates(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the medians over the ranks: flops of kernels, memory bandwidth, overhead of an operator.

    flops: operations per second, by kernel and type ("matmul float32"); bandwidth in bytes per second;
    overhead in seconds.
    """
    rates = {}
    for name in ("copy", "operators", *(name for name in results[0] if _is_rate(name))):
        values = [result[name] for result in results]
        if None not in values:
            rates[name] = _round(statistics.median(values))
    memory_bandwidth, operators = rates.pop("copy"), rates.pop("operators")
    return {
        "flops": rates,
        "memory_bandwidth": memory_bandwidth,
        "overhead": _round(1 / operators),
    }


def _host_overhead(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the medians over the ranks of the time that communication takes from computing.

    They are seconds per message, per slice of a parameter, per byte and per all-reduce
    (runtime/host_overhead.py). A kind that the ranks do not measure keeps its default
    (clusters/devices.py).
    """
    return {
        name: _round(statistics.median(result["host_overhead"][name] for result in results))
        for name in results[0]["host_overhead"]
    }


def _is_rate(name: str) -> bool:
    """Return whether a value of the result is the FLOP/s of a kernel, such as "conv float32"."""
    return name.split()[0] in FAMILIES


def _links(times: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """Return latency and bandwidth of the links, between idle ranks and under load.

    times: the result of rank 0 (rank.py), which has samples (bytes, seconds) by measurement. duplex: both
    directions work at the same time; shared: all pairs of ranks share the bandwidth.
    """
    if ranks == 1:
        return {"idle": None, "loaded": None, "duplex": True, "shared": False}
    # [-1]: the sample of the largest messages
    _, one_way_seconds = times["messages"][-1]
    _, both_ways_seconds = times["messages both ways"][-1]
    _, all_pairs_seconds = times["messages of all"][-1]
    pairs = ranks // 2
    return {
        "idle": _link(times["messages"]),
        "loaded": _link(times["messages under load"]),
        # In both directions, a half-duplex link would take twice the time of one: 1.5 is the middle. With
        # all pairs at once, a shared link would take `pairs` times the time: (1 + pairs) / 2 is the middle.
        "duplex": both_ways_seconds < 1.5 * one_way_seconds,
        "shared": pairs > 1 and all_pairs_seconds > (1 + pairs) / 2 * one_way_seconds,
    }


def _link(samples: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Fit a link to samples (bytes, seconds)."""
    link = fit(samples)
    return {
        "latency": _round(link.latency),
        "bandwidth": _round(link.bandwidth),
        "samples": [[nbytes, _round(seconds)] for nbytes, seconds in samples],
    }


def _cluster(measured: Mapping[str, Any]) -> Cluster:
    """Return a cluster of one node with a device for each rank."""
    ranks = measured["ranks"]
    # local_kind: the name of the kind of device, such as "cpu-8/2" for 8 cores and 2 ranks.
    device = _device(catalogue.local_kind(measured["cores"], ranks), measured)
    link = None
    if ranks > 1:
        # In a training step, messages are sent while the ranks compute: so take the times under load.
        loaded = measured["loaded"]
        link = Link(
            loaded["bandwidth"],
            loaded["latency"],
            duplex=measured["duplex"],
            shared=measured["shared"],
        )
    # One node: its devices, the link between them, and no network to other nodes.
    return build_cluster(f"{catalogue.LOCAL}:{ranks}", [([device] * ranks, link, None)])


def _device(kind: str, measured: Mapping[str, Any]) -> Device:
    """Return the description of a device from its measured rates.

    The fastest kernel in float32 defines the peak; the efficiency of a family is its share of the peak. The
    efficiency "memory" is 1, as the bandwidth is what a copy has reached.
    """
    rates = measured["flops"]
    peak = max(rates[f"{family} float32"] for family in FAMILIES)
    shares = {family: rates[f"{family} float32"] / peak for family in FAMILIES}
    # The peak by data type; multiplied by the efficiency of matmul, it is the measured rate of a matmul.
    flops = {
        name.removeprefix("matmul "): _round(value / shares["matmul"])
        for name, value in rates.items()
        if name.startswith("matmul ")
    }
    return Device(
        kind=kind,
        node=0,
        flops=flops,
        memory=measured["memory"],
        bandwidth=measured["memory_bandwidth"],
        overhead=measured["overhead"],
        efficiency={**{family: _round(share) for family, share in shares.items()}, "memory": 1.0},
        host_overhead=measured.get("host_overhead", {}),
    )


def _slug(name: str) -> str:
    """Return a name as lower-case letters, digits and dashes: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _round(value: float) -> float:
    """Round to four significant digits: more would be noise."""
    return float(f"{value:.4g}")
