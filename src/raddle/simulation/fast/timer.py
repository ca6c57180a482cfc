"""Calls the compiled step with room enough to write it, and says what it came to."""

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
NO_LIMIT = np.iinfo(np.int64).max // 4


class Timer:
    """Times steps of one graph; `counts` are nodes, edges and simulated nodes of the last."""

    def __init__(self, outline: GraphIndex, plan: Plan, machine: ClusterArrays, links: int) -> None:
        sync = plan.parsed_sync
        self.tape, self.machine, self.links = outline.tape, machine, links
        urgency = urgencies(outline.graph, outline.parameter_number, outline.trained, sync)
        self.ways = SyncSettings(rule_of(sync), plan.bucket, not sync.zero3, sync.sliced, urgency)
        self.parameters = len(outline.users)
        self.counts = np.zeros(3, np.int64)
        self.space = self._room(4096, 16384)

    def time(self, slots: Slots, store: RowStore, limit: int, *, fold: bool) -> int | None:
        """Nanoseconds of a step; None if they are more than the limit."""
        machine = self.machine
        while True:
            found = step_time(
                machine.count, self.links, self.ways, self.tape, slots, store.arena(),
                machine.rings.arrays(), machine.host_overhead, self.space, limit, fold, self.counts,
            )  # fmt: skip
            if found != TOO_SMALL:
                return None if found == OVER_LIMIT else int(found)
            self.space = self._room(2 * len(self.space.nodes), 2 * len(self.space.edges))

    def _room(self, nodes: int, edges: int) -> StepDag:
        arrivals = int(self.tape.arrival.max(initial=-1)) + 1
        marks = max(self.parameters, int(self.tape.mark.max(initial=-1)) + 1)

        def table(rows: int, kind: Any) -> Array:
            return np.zeros((rows, self.machine.count), kind)

        return StepDag(
            np.zeros((nodes, 8), np.int64), np.zeros((edges, 3), np.int64),
            table(arrivals, np.int32), table(marks, np.int32), table(marks, np.int64),
            table(max(3 * self.parameters, nodes // 8), np.int32),
        )  # fmt: skip
