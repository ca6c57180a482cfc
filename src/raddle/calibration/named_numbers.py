"""The numbers of a cluster that calibration can fit, by name.

    conv, matmul, attention, memory   efficiency of a family of operators: the share of the peak (of the
                                      memory's bandwidth) that they reach; above 1 where an algorithm needs
                                      fewer FLOPs than are counted
    peak                              FLOP/s of all data types together: all families get faster alike
    link                              bandwidth of the links inside nodes
    network                           bandwidth of the adapters between nodes
    overhead                          fixed seconds per operator, as the launch of a kernel
    message, slice, sum, byte         host overhead: seconds that communication takes from a device
    collective                        by how much a running all-reduce slows computing, from 0 to 1

A number is fitted as a factor on its value in the cluster, the same for all kinds of devices and all links.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from raddle.clusters import Cluster
from raddle.clusters.devices import EFFICIENCY, HOST_OVERHEAD, Device
from raddle.clusters.units import EFFICIENCY_SHARE


class NamedNumber(NamedTuple):
    """A number that can be fitted."""

    meaning: str
    least: float  # of its value
    most: float
    start: float = 0.0  # where it begins if the cluster has 0


_FAMILIES = {
    "conv": "efficiency of convolutions",
    "matmul": "efficiency of matrix products",
    "attention": "efficiency of attention",
}
NUMBERS: dict[str, NamedNumber] = {
    **{name: NamedNumber(text, 1e-4, EFFICIENCY_SHARE.maximum) for name, text in _FAMILIES.items()},
    "peak": NamedNumber("peak FLOP/s in float32", 1e6, 1e20),
    "memory": NamedNumber("efficiency of memory-bound operators", 1e-4, 1.0),
    "link": NamedNumber("bandwidth of links inside nodes, bytes/s", 1e3, 1e15),
    "network": NamedNumber("bandwidth of adapters, bytes/s", 1e3, 1e15),
    "overhead": NamedNumber("seconds per operator", 1e-9, 1.0, 1e-6),
    "message": NamedNumber("host overhead per message, seconds", 1e-9, 1.0, 1e-5),
    "slice": NamedNumber("host overhead per slice, seconds", 1e-9, 1.0, 1e-5),
    "sum": NamedNumber("host overhead per all-reduce, seconds", 1e-9, 1.0, 1e-5),
    "byte": NamedNumber("host overhead per byte, seconds", 1e-15, 1e-3, 1e-11),
    "collective": NamedNumber("by how much an all-reduce slows computing", 1e-3, 1.0, 0.1),
}
# Those of which the default fit chooses. The others need measurements that show them apart from these.
USUAL = ("conv", "matmul", "attention", "memory", "link", "network", "overhead")


def value_of(cluster: Cluster, name: str) -> float:
    """The value of a number in a cluster: that of its first device or link; 0 if it has none."""
    device = cluster.devices[0]
    if name in EFFICIENCY:
        return device.efficiency[name]
    if name in HOST_OVERHEAD:
        return device.host_overhead[name]
    if name == "overhead":
        return device.overhead
    if name == "peak":
        return device.flops["float32"]
    links = cluster.node_links if name == "link" else cluster.node_networks
    return next((link.bandwidth for link in links if link is not None), 0.0)


def with_values(cluster: Cluster, values: Mapping[str, float]) -> Cluster:
    """The cluster with other values. Different kinds and links keep their ratios."""
    factors = {}
    for name, value in values.items():
        before = value_of(cluster, name)
        factors[name] = value / before if before else math.inf  # inf: there is nothing to multiply
    by_device = {device: _device_with(device, values, factors) for device in set(cluster.devices)}
    link, network = factors.get("link", 1.0), factors.get("network", 1.0)
    return replace(
        cluster,
        devices=tuple(by_device[device] for device in cluster.devices),
        node_links=tuple(
            a and replace(a, bandwidth=a.bandwidth * link) for a in cluster.node_links
        ),
        node_networks=tuple(
            a and replace(a, bandwidth=a.bandwidth * network) for a in cluster.node_networks
        ),
    )


def _device_with(
    device: Device, values: Mapping[str, float], factors: Mapping[str, float]
) -> Device:
    """A device with other values. factors: by number, the value over that of the cluster's first device."""

    def scaled(old: Mapping[str, float]) -> dict[str, float]:
        return {
            name: value
            if name not in factors
            else _scaled(value, factors[name], values[name], name)
            for name, value in old.items()
        }

    overhead = device.overhead
    if "overhead" in factors:
        overhead = _scaled(overhead, factors["overhead"], values["overhead"], "overhead")
    peak = factors.get("peak", 1.0)
    return replace(
        device,
        flops={dtype: flops * peak for dtype, flops in device.flops.items()},
        efficiency=scaled(device.efficiency),
        host_overhead=scaled(device.host_overhead),
        overhead=overhead,
    )


def _scaled(old: float, factor: float, value: float, name: str) -> float:
    """The old value times the factor, in the limits of the number; `value` if there is no factor."""
    if math.isinf(factor):
        return value
    return min(max(old * factor, 0.0 if not old else NUMBERS[name].least), NUMBERS[name].most)
