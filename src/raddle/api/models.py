"""Models: capturing a module as a graph, and workloads of the zoo (a module, a batch and a loss).

`work` counts the FLOPs, and the elements read or written, of a box of an operator.
"""

from __future__ import annotations

from raddle.graph.capture import capture
from raddle.graph.graph import Graph, Op
from raddle.graph.ops import work
from raddle.zoo.loading import load as load_workload
from raddle.zoo.registry import names as zoo_names
from raddle.zoo.workload import Workload

__all__ = ["Graph", "Op", "Workload", "capture", "load_workload", "work", "zoo_names"]
