"""Tasks of what devices compute: runs of operators, merges of partial results, updates of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.compute import ComputeCosts, effective_bandwidth, memory_pass_seconds
from raddle.costs.native_calls import applicable_native_calls
from raddle.costs.profile import Profile
from raddle.graph.graph import Op
from raddle.plans.optimizers import optimizer_costs
from raddle.plans.tiling import Grid
from raddle.program.merges import merged_bytes
from raddle.program.program import Merge, Program, Run, Update
from raddle.simulation.nanoseconds import nanoseconds
from raddle.simulation.rows import Array, Rows


class Computing:
    """A task on each device of an instruction; what runs take is worked out once for all repetitions."""

    def __init__(
        self, rows: Rows, program: Program, cluster: Cluster, profile: Profile | None
    ) -> None:
        self.rows, self.program, self.cluster = rows, program, cluster
        plan = program.plan
        self.costs = ComputeCosts(
            program.graph, program.active, profile, split_backward=plan.split_backward, bn=plan.bn,
            native_calls=applicable_native_calls(program.graph, plan.tiles) if profile else None,
        )  # fmt: skip
        self.runs: dict[tuple[str, str, int], tuple[Array, Array]] = {}

    def run(self, number: int, run: Run) -> None:
        key = (run.op, run.phase, run.key.variant)
        if key not in self.runs:
            self.runs[key] = _timed(self._run_seconds(run))
        self.rows.compute(number, *self.runs[key], run.deps)

    def merge(self, number: int, merge: Merge) -> None:
        width = self.program.element_bytes(self.program.variant(merge.key).ops[merge.op].outputs[0])
        passes = [(cell.devices, merged_bytes(cell, width)) for cell in merge.cells]
        self.rows.compute(number, *_timed(self._passes(merge.devices, passes)), merge.deps)

    def update(self, number: int, update: Update) -> None:
        """Slices are updated as they come, between or beside what a device computes."""
        each = optimizer_costs(self.program.plan.optimizer).passes
        each *= self.program.element_bytes(update.parameter)
        passes = [(share.updaters, each * share.box.volume) for share in update.regions]
        seconds = self._passes(update.devices, passes)
        apart = update.parameter in self.program.slices
        self.rows.compute(number, *_timed(seconds), update.deps, apart=apart)

    def _passes(
        self, devices: Iterable[int], passes: Iterable[tuple[Iterable[int], int]]
    ) -> dict[int, float]:
        """By device, seconds in which it passes over bytes of its memory: (devices, bytes) a pass."""
        seconds = dict.fromkeys(devices, 0.0)
        for several, nbytes in passes:
            for d in several:
                own = self.cluster.devices[d]
                seconds[d] += memory_pass_seconds(nbytes, effective_bandwidth(own), own.overhead)
        return seconds

    def _run_seconds(self, run: Run) -> dict[int, float]:
        """By device, the seconds of its tiles."""
        variant = self.program.variant(run.key)
        op, tiling = variant.ops[run.op], variant.tiles[run.op]
        seconds = dict.fromkeys(run.devices, 0.0)
        if isinstance(tiling, Grid) and _alike(
            op, tiling
        ):  # they differ by the kind of device alone
            tiles = [(tiling.boxes[0], d) for d in tiling.devices]
        else:
            tiles = [(tile.box, tile.device) for tile in tiling.tiles]
        for box, d in tiles:
            seconds[d] += self.costs.seconds(op, box, run.phase, self.cluster.devices[d])
        return seconds


def _timed(seconds: Mapping[int, float]) -> tuple[Array, Array]:
    """Devices, and the nanoseconds of each."""
    return np.array(list(seconds)), nanoseconds(list(seconds.values()))


def _alike(op: Op, grid: Grid) -> bool:
    """Whether all tiles do the same work: equal shapes, and no halo that the border cuts off."""
    split = {d for d, cuts in enumerate(grid.cuts) if len(cuts) > 2}
    indices = [index for access in op.space.operands for index in access.indices]
    once = any(access.added_once for access in op.space.operands) and split & set(
        op.space.reduced_dims
    )
    return (
        grid.uniform
        and not once
        and all(
            index.plain_dim is not None or not split & {term.dim for term in index.terms}
            for index in indices
        )
    )
