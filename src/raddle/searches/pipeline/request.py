"""Pipelines that a user asks for: a schedule, stages or micro-batches that are not searched."""

# m: micro-batches, P: stages

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raddle.errors import InputError
from raddle.plans.named_schedule import Named
from raddle.plans.pipelining import is_schedule
from raddle.plans.schedule import read
from raddle.plans.schedules import ASYNCHRONOUS, NAMES, SCHEDULES
from raddle.searches.pipeline.layers import DeviceChain, LayerCosts, Layers, topological_order
from raddle.searches.pipeline.shortest_period import partition_for_period
from raddle.searches.pipeline.shortest_step import StepPartition, StepStage, partition_for_step

DEFAULT = "1f1b"


@dataclass(frozen=True)
class Asked:
    """What is decided already; None: the search decides."""

    schedule: str = ""
    stages: int | None = None
    microbatches: int | None = None

    @property
    def workers(self) -> tuple[tuple[int, ...], ...]:
        """Of a written schedule: a device a row."""
        return tuple((w,) for w in range(len(read(self.schedule).rows))) if self.rows else ()

    @property
    def rows(self) -> bool:
        """Whether the schedule is written out."""
        return bool(self.schedule) and self.schedule not in NAMES

    @property
    def named(self) -> Named:
        """The schedule, unless it is written out."""
        return SCHEDULES[self.schedule or DEFAULT]

    def checked(self, batch: int, devices: int) -> Asked:
        """Raises InputError for what cannot be; a written schedule says how many there are of each."""
        if self.schedule and not is_schedule(self.schedule):
            raise InputError(
                f"there is no schedule '{self.schedule}': choose {', '.join(NAMES)}, or a file with a "
                "row of actions for each worker."
            )
        stages, count = self.stages, self.microbatches
        if self.rows:
            written = read(self.schedule)
            stages, count = written.stages, written.microbatches
            if len(written.rows) > devices:
                raise InputError(
                    f"the schedule has {len(written.rows)} rows, the cluster {devices} devices."
                )
        if count is not None and not 1 <= count <= batch:
            raise InputError(
                f"{count} micro-batches of a batch of {batch}: ask for 1 to {batch} of them."
            )
        most = devices * (1 if self.rows else self.named.chunks)
        if stages is not None and not self.rows and not 2 <= stages <= most:
            raise InputError(f"{stages} stages on {devices} devices: ask for 2 to {most}.")
        return Asked(self.schedule, stages, count)

    def counts(self, batch: int, devices: int) -> list[int]:
        """Micro-batches to try."""
        if self.microbatches is not None:
            return [self.microbatches]
        if not self.rows and self.named.per_step is not None:
            return [min(batch, self.named.per_step(devices))]
        return sorted({m for m in (devices, 2 * devices, 4 * devices) if m <= batch} or {batch})

    def cut(
        self, work: LayerCosts, line: DeviceChain, m: int, static: float
    ) -> StepPartition | None:
        """Stages for the schedule: as many as it needs."""
        devices = len(line.kinds)
        alone = self.rows or not self.named.replicated
        if not alone and self.stages is None:
            if self.schedule in ASYNCHRONOUS and len(set(line.kinds)) == 1:
                return _shortest_period(work, line)
            return pipeline_of(work, line, m, static)
        if self.rows:
            written = read(self.schedule)
            homes = [written.worker(s, 0) for s in range(written.stages)]
            return _balanced(work, homes)
        stages = self.stages or devices * self.named.chunks
        if self.named.even and stages % 2:
            raise InputError(f"{self.schedule} needs an even number of stages, not {stages}.")
        if stages <= devices:
            first = DeviceChain(
                line.kinds[:stages], line.capacity[:stages],
                line.bandwidth[: stages - 1], line.latency[: stages - 1],
            )  # fmt: skip
            found = partition_for_step(
                work, first, microbatches=m, state_factor=static, max_replicas=1
            )
            if found is not None and len(found.stages) == stages:
                return found
        return _balanced(work, [s % min(stages, devices) for s in range(stages)])


def pipeline_of(work: LayerCosts, line: DeviceChain, m: int, static: float) -> StepPartition | None:
    """The best cut into two stages or more; where one device is best, as many stages as devices."""
    devices = len(line.kinds)
    limit = max(1, devices - 1)
    found = partition_for_step(work, line, microbatches=m, state_factor=static, max_replicas=limit)
    if found is not None and len(found.stages) == 1:
        return _balanced(work, list(range(min(devices, len(work.successors)))))
    return found


def _shortest_period(work: LayerCosts, line: DeviceChain) -> StepPartition:
    """Without a flush the slowest stage decides (partition.py)."""
    devices = len(line.kinds)
    layers = Layers(
        work.forward[0], work.backward[0], work.activation, work.parameters, work.successors
    )
    bandwidth = min(line.bandwidth, default=1e12)
    found = partition_for_period(layers, devices, bandwidth=bandwidth, counting="crossing")
    if len(found.stages) == 1:
        return _balanced(work, list(range(min(devices, len(work.successors)))))
    stages, first = [], 0
    for stage in found.stages:
        own = tuple(range(first, first + stage.replicas))
        stages.append(StepStage(stage.layers, own, False, stage.seconds, 0.0))
        first += stage.replicas
    return StepPartition(tuple(stages), found.period, found.exact, found.ideals)


def _balanced(work: LayerCosts, devices: Sequence[int]) -> StepPartition:
    """Runs of one topological order whose longest is as short as can be, each on its device."""
    order, stages = topological_order(work.successors), len(devices)
    if stages > len(order):
        raise InputError(f"the model has {len(order)} layers to cut between, not {stages}.")
    seconds = [work.forward[0][v] + work.backward[0][v] for v in order]
    sums = [0.0]
    for s in seconds:
        sums.append(sums[-1] + s)
    # best[k][i]: the longest of k runs of the first i layers, and where the last begins.
    best: list[list[tuple[float, int]]] = [[(0.0, 0)] + [(float("inf"), 0)] * len(order)]
    for k in range(1, stages + 1):
        row = [(float("inf"), 0)] * (len(order) + 1)
        for i in range(k, len(order) + 1):
            row[i] = min((max(best[k - 1][j][0], sums[i] - sums[j]), j) for j in range(k - 1, i))
        best.append(row)
    ends, i = [], len(order)
    for k in range(stages, 0, -1):
        ends.append((best[k][i][1], i))
        i = best[k][i][1]
    made = tuple(
        StepStage(tuple(order[a:b]), (devices[s],), False, sums[b] - sums[a], 0.0)
        for s, (a, b) in enumerate(reversed(ends))
    )
    return StepPartition(made, best[stages][-1][0], False, 0)
