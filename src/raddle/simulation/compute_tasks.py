"""Adds the tasks of computations on devices: runs of operators, merges of partial results, updates.

Merges and updates are memory passes: reads or writes of some bytes, limited by the memory's bandwidth. A
cell is a box of an output that some devices merge from partial results (program.Cell). A variant is a graph
with tiles: micro-batches of different sizes, or on different replicas of a pipeline stage, have different
variants (program.Variant). Most programs have one variant.

The methods `add_...` take the number of an instruction in the program, and the instruction itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np

from raddle.clusters import Cluster, Device
from raddle.costs.compute import (
    ComputeCosts,
    MemoryRate,
    memory_pass_seconds,
    merge_rate,
    update_rate,
)
from raddle.costs.native_calls import applicable_native_calls
from raddle.costs.profile import Profile
from raddle.graph.graph import Op
from raddle.plans.tiling import Grid
from raddle.program.merges import merged_bytes
from raddle.program.program import Merge, Program, Run, Update, update_bytes
from raddle.simulation.nanoseconds import nanoseconds
from raddle.simulation.task_table import Array, TaskTable


class ComputeTasks:
    """Adds one task for each device that takes part in an instruction. Durations of runs are cached."""

    def __init__(
        self, table: TaskTable, program: Program, cluster: Cluster, profile: Profile | None
    ) -> None:
        self.table, self.program, self.cluster = table, program, cluster
        self.update_rate = partial(update_rate, profile=profile)  # of a device
        plan = program.plan
        # native_calls: composites that run as one PyTorch call (costs/native_calls.py); only with a profile
        self.costs = ComputeCosts(
            program.graph, program.active, profile, split_backward=plan.split_backward, bn=plan.bn,
            native_calls=applicable_native_calls(program.graph, plan.tiles) if profile else None,
        )  # fmt: skip
        # (operator, phase, number of the variant) -> (devices, nanoseconds)
        self.run_times: dict[tuple[str, str, int], tuple[Array, Array]] = {}

    def add_run(self, number: int, run: Run) -> None:
        """Adds the tasks of an operator's tiles, in a phase (forward, backward ...: see program.Run)."""
        key = (run.op, run.phase, run.key.variant)
        if key not in self.run_times:
            self.run_times[key] = _devices_and_nanoseconds(self._run_seconds(run))
        self.table.add_compute(number, *self.run_times[key], run.deps)

    def add_merge(self, number: int, merge: Merge) -> None:
        """Adds the tasks that merge partial results."""
        element_bytes = self.program.element_bytes(
            self.program.variant(merge.key).ops[merge.op].outputs[0]
        )
        memory_passes = [(cell.devices, merged_bytes(cell, element_bytes)) for cell in merge.cells]
        self.table.add_compute(
            number,
            *_devices_and_nanoseconds(
                self._memory_pass_seconds(merge.devices, memory_passes, merge_rate)
            ),
            merge.deps,
        )

    def add_update(self, number: int, update: Update) -> None:
        """Adds the tasks of an update. Updates of slices are unordered: they run when a device is free."""
        program = self.program
        bytes_per_element = update_bytes(program.plan, program.graph, update.parameter)
        memory_passes = [
            (region.updaters, bytes_per_element * program.updated_elements(region))
            for region in update.regions
        ]
        seconds = self._memory_pass_seconds(update.devices, memory_passes, self.update_rate)
        unordered = update.parameter in self.program.slices
        self.table.add_compute(
            number, *_devices_and_nanoseconds(seconds), update.deps, unordered=unordered
        )

    def _memory_pass_seconds(
        self,
        devices: Iterable[int],
        memory_passes: Iterable[tuple[Iterable[int], int]],
        rate: Callable[[Device], MemoryRate],
    ) -> dict[int, float]:
        """Returns by device the seconds of its memory passes; memory_passes: (devices, bytes) of each."""
        seconds = dict.fromkeys(devices, 0.0)
        for devices_of_pass, nbytes in memory_passes:
            for d in devices_of_pass:
                seconds[d] += memory_pass_seconds(nbytes, *rate(self.cluster.devices[d]))
        return seconds

    def _run_seconds(self, run: Run) -> dict[int, float]:
        """Returns by device the seconds that its tiles of a run take."""
        variant = self.program.variant(run.key)
        op, tiling = variant.ops[run.op], variant.tiles[run.op]
        seconds = dict.fromkeys(run.devices, 0.0)
        # A shortcut: with equal tiles, the times depend on the kind of device only.
        if isinstance(tiling, Grid) and _all_tiles_equal(op, tiling):
            tiles = [(tiling.boxes[0], d) for d in tiling.devices]
        else:
            tiles = [(tile.box, tile.device) for tile in tiling.tiles]
        for box, d in tiles:
            seconds[d] += self.costs.seconds(op, box, run.phase, self.cluster.devices[d])
        return seconds


def _devices_and_nanoseconds(seconds: Mapping[int, float]) -> tuple[Array, Array]:
    """Returns an array of devices, and an array of the nanoseconds of each. seconds: by device."""
    return np.array(list(seconds)), nanoseconds(list(seconds.values()))


def _all_tiles_equal(op: Op, grid: Grid) -> bool:
    """Returns whether all tiles of a grid do the same work.

    They do if they have equal shapes, no halo is cut off at the border of the tensor, and no operand is
    added by the first tile only, as a bias is (`added_once`). An index expression says which element of an
    operand a point of the iteration space reads; an access has one for each dimension of the operand.
    """
    # cuts: the borders of a dimension's parts, both ends included: (0, 8) is unsplit, (0, 4, 8) two parts
    split = {dim for dim, cuts in enumerate(grid.cuts) if len(cuts) > 2}
    indices = [index for access in op.space.operands for index in access.indices]
    added_once = any(access.added_once for access in op.space.operands) and split & set(
        op.space.reduced_dims
    )
    return (
        grid.uniform
        and not added_once
        and all(
            # The expression is one dimension alone, or (if it has several, such as h + r in a convolution)
            # uses no split dimension.
            index.plain_dim is not None or not split & {term.dim for term in index.terms}
            for index in indices
        )
    )
