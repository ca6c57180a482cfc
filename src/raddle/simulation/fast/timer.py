"""Calls the JIT-compiled function that times a step (kernel.py), with arrays that are large enough.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

The structures Slots, StepDag and SyncSettings are explained in arrays.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raddle.plans.plan import Plan
from raddle.program.gradient_sync import rule_of
from raddle.simulation.fast.arrays import Slots, StepDag, SyncSettings
from raddle.simulation.fast.cluster_arrays import ClusterArrays
from raddle.simulation.fast.graph_index import GraphIndex
from raddle.simulation.fast.kernel import OVER_LIMIT, TOO_SMALL, step_time
from raddle.simulation.fast.store import RowStore
from raddle.simulation.fast.tape import urgencies

Array = np.ndarray
NO_LIMIT = np.iinfo(np.int64).max // 4  # nanoseconds


class Timer:
    """Times steps of one graph; links: the number of links of the cluster.

    The plan gives the sync kind and the bucket size; the tiles are those of the slots that `time` gets.
    counts: of the last step, the numbers of nodes (tasks), of edges, and of nodes that were simulated
    before its end or the limit was reached.
    """

    def __init__(self, index: GraphIndex, plan: Plan, cluster: ClusterArrays, links: int) -> None:
        sync = plan.parsed_sync
        self.tape, self.cluster, self.links = index.tape, cluster, links
        urgency = urgencies(index.graph, index.parameter_number, index.trained, sync)
        # rule, bucket_bytes, returns_updates, sliced, after_backward, urgency: see arrays.py
        self.settings = SyncSettings(
            rule_of(sync), plan.bucket, not sync.zero3, sync.sliced, sync.after_backward, urgency
        )
        self.parameters = len(index.users)
        self.counts = np.zeros(3, np.int64)
        self.dag = self._allocate(4096, 16384)  # nodes, edges

    def time(self, slots: Slots, store: RowStore, limit: int, *, fold: bool) -> int | None:
        """Returns the nanoseconds of a step; None if they exceed the limit.

        slots: which rows of the store the current plan uses. fold: join consecutive tasks of a device.
        """
        cluster = self.cluster
        while True:
            nanoseconds = step_time(
                cluster.count, self.links, self.settings, self.tape, slots, store.arena(),
                cluster.rings.arrays(), cluster.host_overhead, self.dag, limit, fold, self.counts,
            )  # fmt: skip
            if nanoseconds != TOO_SMALL:
                return None if nanoseconds == OVER_LIMIT else int(nanoseconds)
            self.dag = self._allocate(2 * len(self.dag.nodes), 2 * len(self.dag.edges))

    def _allocate(self, nodes: int, edges: int) -> StepDag:
        """Returns a StepDag with room for this many nodes and edges."""
        # The tape is the list of the graph's instructions. arrivals: how many of them send messages or
        # gather parameters; marks: the number of places of the tape for which messages or all-reduces wait
        arrivals = int(self.tape.arrival.max(initial=-1)) + 1
        marks = max(self.parameters, int(self.tape.mark.max(initial=-1)) + 1)

        def table(rows: int, kind: Any) -> Array:
            """Returns an array of zeros with a column for each device; kind: a dtype."""
            return np.zeros((rows, self.cluster.count), kind)

        return StepDag(
            np.zeros((nodes, 9), np.int64), np.zeros((edges, 3), np.int64),  # columns: see arrays.py
            table(arrivals, np.int32), table(marks, np.int32), table(marks, np.int64),
            # sync_arrival: a row for each operation of the step script (a sum, push, update or pull); their
            # number is guessed, and `time` allocates more if there are too few
            table(max(3 * self.parameters, nodes // 8), np.int32),
        )  # fmt: skip
