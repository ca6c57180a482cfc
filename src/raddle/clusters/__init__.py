"""Clusters: devices and the links between them, from a preset, a YAML file or a measurement.

cluster("p100:4x4")      4 nodes with 4 devices each
cluster("h100:16")       16 devices, on nodes of the preset's size: two nodes of 8
cluster("local:2")       2 processes on this machine, with assumed speeds: `raddle probe` measures them
cluster("mine.yaml")     a YAML file; raddle/clusters/description.py shows its keys
"""

from raddle.clusters.catalogue import presets
from raddle.clusters.devices import Device, Link, Network
from raddle.clusters.loading import cluster
from raddle.clusters.topology import Cluster, Route, compiled

__all__ = ["Cluster", "Device", "Link", "Network", "Route", "cluster", "compiled", "presets"]
