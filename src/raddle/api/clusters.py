"""Clusters: devices and the links between them, and the list of presets."""

from __future__ import annotations

from raddle.clusters import Cluster, Device, Link, Network, cluster, presets
from raddle.clusters.catalogue import cores
from raddle.clusters.summary import summarise
from raddle.clusters.topology import build_cluster

__all__ = [
    "Cluster", "Device", "Link", "Network", "build_cluster", "cluster", "cores", "presets", "summarise",
]  # fmt: skip
