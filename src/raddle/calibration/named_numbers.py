"""The numbers of a cluster that calibration can fit, by name.

    conv, matmul, attention           efficiency of a family of operators: the fraction of the peak FLOP/s
                                      that they reach; above 1 if the algorithm needs fewer FLOPs than are
                                      counted
    memory                            efficiency of all other operators: the fraction of the memory's
                                      bandwidth that they reach
    fused                             the same where torch.compile has fused them (a device with compile)
    peak                              peak FLOP/s of all data types: one factor makes all families faster
    link                              bandwidth of the links inside nodes
    network                           bandwidth of the adapters between nodes
    overhead                          fixed seconds per operator, such as those of a kernel launch
    message, slice, sum, byte         host overhead: seconds that a device that computes spends on each
                                      message, slice of a parameter, all-reduce or byte
    collective                        by how much a running all-reduce slows computing, from 0 to 1

A fit multiplies a number's value in the cluster by one factor, for all kinds of devices and all links.
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
    least: float  # the smallest value that a fit may give
    most: float  # the largest value that a fit may give
    start: float = 0.0  # the value from which the fit starts if the cluster has 0


_FAMILIES = {
    "conv": "efficiency of convolutions",
    "matmul": "efficiency of matrix products",
    "attention": "efficiency of attention",
}
NUMBERS: dict[str, NamedNumber] = {
    **{name: NamedNumber(text, 1e-4, EFFICIENCY_SHARE.maximum) for name, text in _FAMILIES.items()},
    "peak": NamedNumber("peak FLOP/s in float32", 1e6, 1e20),
    "memory": NamedNumber("efficiency of memory-bound operators", 1e-4, 1.0),
    "fused": NamedNumber("efficiency of operators that torch.compile has fused", 1e-4, 1.0),
    "link": NamedNumber("bandwidth of links inside nodes, bytes/s", 1e3, 1e15),
    "network": NamedNumber("bandwidth of adapters, bytes/s", 1e3, 1e15),
    "overhead": NamedNumber("seconds per operator", 1e-9, 1.0, 1e-6),
    "message": NamedNumber("host overhead per message, seconds", 1e-9, 1.0, 1e-5),
    "slice": NamedNumber("host overhead per slice, seconds", 1e-9, 1.0, 1e-5),
    "sum": NamedNumber("host overhead per all-reduce, seconds", 1e-9, 1.0, 1e-5),
    "byte": NamedNumber("host overhead per byte, seconds", 1e-15, 1e-3, 1e-11),
    "collective": NamedNumber("by how much an all-reduce slows computing", 1e-3, 1.0, 0.1),
}
# The numbers from which the default fit chooses. The other numbers are fitted only if the user names them:
# they need measurements that tell them apart from these.
USUAL = ("conv", "matmul", "attention", "memory", "link", "network", "overhead")


def value_of(cluster: Cluster, name: str) -> float:
    """Returns the value of a number in a cluster: that of the first device or link.

    0 without such a link.
    """
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
    """Returns the cluster with other values. Different kinds of devices and links keep their ratios.

    values: name of a number -> value for the first device or link.
    """
    factors = {}
    for name, value in values.items():
        before = value_of(cluster, name)
        # inf: the cluster has 0, which cannot be multiplied; the value is set instead.
        factors[name] = value / before if before else math.inf
    new_devices = {device: _device_with(device, values, factors) for device in set(cluster.devices)}
    link, network = factors.get("link", 1.0), factors.get("network", 1.0)
    return replace(
        cluster,
        devices=tuple(new_devices[device] for device in cluster.devices),
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
    """Returns a device with other values.

    factors: name of a number -> its new value over the value of the cluster's first device.
    """

    def scaled(old: Mapping[str, float]) -> dict[str, float]:
        """Returns values by name of a number, with those scaled for which there is a factor."""
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
    """Returns the old value times the factor, within the limits of the number.

    factor: infinite if the first device has 0; then the result is `value`.
    """
    if math.isinf(factor):
        return value
    return min(max(old * factor, 0.0 if not old else NUMBERS[name].least), NUMBERS[name].most)
