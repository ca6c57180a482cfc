"""Clusters: devices and the links between them, from a preset, a YAML file or a measurement.

cluster("p100:4x4")      4 nodes of 4
cluster("h100:16")       16 devices, in as many nodes of the usual size as they fill
cluster("local:2")       2 processes on this machine, with assumed figures: `raddle probe` measures them
cluster("mine.yaml")     a description, see `raddle.clusters.description`
"""

from raddle.clusters.catalogue import presets
from raddle.clusters.devices import Device, Link, Network
from raddle.clusters.loading import cluster
from raddle.clusters.topology import Cluster, Route

__all__ = ["Cluster", "Device", "Link", "Network", "Route", "cluster", "presets"]
