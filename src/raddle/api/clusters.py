"""Clusters: devices and the links between them, and the list of presets.

A `Link` joins the devices of a node; a `Network` is the adapter (NIC) with which a node reaches the others.
`cluster` reads a preset or a file, `build_cluster` takes a list of nodes, `summarise` describes a cluster
for tables. `cores` counts the CPU cores that this process may use.
"""

from __future__ import annotations

from raddle.clusters import Cluster, Device, Link, Network, cluster, presets
from raddle.clusters.catalogue import cores
from raddle.clusters.summary import summarise
from raddle.clusters.topology import build_cluster

__all__ = [
    "Cluster", "Device", "Link", "Network", "build_cluster", "cluster", "cores", "presets", "summarise",
]  # fmt: skip
