"""Plans pipelines of which the user fixes the schedule, the number of stages or of micro-batches.

`PipelineRequest` checks the request and makes partitions for it: assignments of layers to stages and of
stages to devices. A schedule has a name ("1f1b") or is *written out*: a text with a row of actions for
each worker (see raddle.plans.schedule).
"""

# m: number of micro-batches, s: stage, v: layer

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from raddle.errors import InputError
from raddle.plans.named_schedule import NamedSchedule
from raddle.plans.pipelining import is_schedule
from raddle.plans.schedule import schedule_from_text
from raddle.plans.schedules import ASYNCHRONOUS, NAMES, SCHEDULES
from raddle.searches.pipeline.layers import DeviceChain, LayerCosts, Layers, topological_order
from raddle.searches.pipeline.shortest_period import partition_for_period
from raddle.searches.pipeline.shortest_step import (
    MAX_OPERATIONS,
    StepPartition,
    StepStage,
    partition_for_step,
)
from raddle.searches.stopwatch import Clock

DEFAULT_SCHEDULE = "1f1b"
# Operations of the partitioner's innermost loop for each second of its clock, so that the dynamic program
# for one cap takes a small part of the time; and the fewest.
OPERATIONS_PER_SECOND, MIN_OPERATIONS = 2.5e7, 1e7


@dataclass(frozen=True)
class PipelineRequest:
    """The choices that the user fixes; None or "" leaves a choice to the search."""

    schedule: str = ""  # a name, or the text of a written-out schedule
    stages: int | None = None  # how many
    microbatches: int | None = None  # how many

    @property
    def workers(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each worker of a written-out schedule: worker w is device w; else ()."""
        return (
            tuple((w,) for w in range(len(schedule_from_text(self.schedule).rows)))
            if self.is_written_out
            else ()
        )

    @property
    def is_written_out(self) -> bool:
        """Whether the schedule is given as rows of actions, not by name."""
        return bool(self.schedule) and self.schedule not in NAMES

    @property
    def named_schedule(self) -> NamedSchedule:
        """The schedule or the default one; fails if the schedule is written out."""
        return SCHEDULES[self.schedule or DEFAULT_SCHEDULE]

    def validated(self, batch: int, devices: int) -> PipelineRequest:
        """Return the request, with the stages and micro-batches of a written-out schedule filled in.

        batch: number of samples; devices: how many the cluster has. Raises InputError if the request
        is impossible.
        """
        if self.schedule and not is_schedule(self.schedule):
            raise InputError(
                f"there is no schedule '{self.schedule}': choose {', '.join(NAMES)}, or a file with a "
                "row of actions for each worker."
            )
        stages, microbatches = self.stages, self.microbatches
        if self.is_written_out:
            written = schedule_from_text(self.schedule)
            stages, microbatches = written.stages, written.microbatches
            if len(written.rows) > devices:
                raise InputError(
                    f"the schedule has {len(written.rows)} rows, the cluster {devices} devices."
                )
        if microbatches is not None and not 1 <= microbatches <= batch:
            raise InputError(
                f"{microbatches} micro-batches of a batch of {batch}: ask for 1 to {batch} of them."
            )
        # chunks: how many stages the schedule has on each device by default
        max_stages = devices * (1 if self.is_written_out else self.named_schedule.chunks)
        if stages is not None and not self.is_written_out and not 2 <= stages <= max_stages:
            raise InputError(f"{stages} stages on {devices} devices: ask for 2 to {max_stages}.")
        return PipelineRequest(self.schedule, stages, microbatches)

    def microbatch_counts(self, batch: int, devices: int) -> list[int]:
        """Return the numbers of micro-batches to try."""
        if self.microbatches is not None:
            return [self.microbatches]
        # per_step: for a schedule without a flush, the number of micro-batches of a step, by the number of
        # stages; unless the user fixes it, there is one stage on each device.
        if not self.is_written_out and self.named_schedule.per_step is not None:
            return [min(batch, self.named_schedule.per_step(self.stages or devices))]
        return sorted({m for m in (devices, 2 * devices, 4 * devices) if m <= batch} or {batch})

    def partition(
        self,
        costs: LayerCosts,
        device_chain: DeviceChain,
        m: int,
        state_factor: float,
        clock: Clock | None = None,
    ) -> StepPartition | None:
        """Assign layers to as many stages as the schedule needs; None if nothing fits in memory.

        state_factor: bytes held for each byte of parameters (weight, gradient, optimizer state). clock: see
        best_partition.
        """
        devices = len(device_chain.kinds)
        one_device_per_stage = self.is_written_out or not self.named_schedule.allows_replicas
        if not one_device_per_stage and self.stages is None:
            # ASYNCHRONOUS: the schedules without a flush.
            if self.schedule in ASYNCHRONOUS and len(set(device_chain.kinds)) == 1:
                return _shortest_period_partition(costs, device_chain)
            return best_partition(costs, device_chain, m, state_factor, clock)
        if self.is_written_out:
            written = schedule_from_text(self.schedule)
            # The worker (device) that runs stage s of micro-batch 0.
            stage_devices = [written.worker(s, 0) for s in range(written.stages)]
            return balanced_partition(costs, stage_devices)
        stages = self.stages or devices * self.named_schedule.chunks
        if self.named_schedule.even_stages and stages % 2:
            raise InputError(f"{self.schedule} needs an even number of stages, not {stages}.")
        if stages <= devices:
            first_devices = DeviceChain(
                device_chain.kinds[:stages], device_chain.capacity[:stages],
                device_chain.bandwidth[: stages - 1], device_chain.latency[: stages - 1],
            )  # fmt: skip
            partition = partition_for_step(
                costs, first_devices, microbatches=m, state_factor=state_factor, max_replicas=1,
                **limits(clock),
            )  # fmt: skip
            if partition is not None and len(partition.stages) == stages:
                return partition
        return balanced_partition(costs, [s % min(stages, devices) for s in range(stages)])


class Limits(TypedDict):
    """The arguments of partition_for_step that limit its time."""

    max_operations: float
    expired: Callable[[], bool]


def limits(clock: Clock | None) -> Limits:
    """Return the limits of a partitioner that may take the seconds of a clock; None: there is no limit."""
    if clock is None:
        return Limits(max_operations=MAX_OPERATIONS, expired=lambda: False)
    operations = OPERATIONS_PER_SECOND * clock.budget
    return Limits(
        max_operations=min(MAX_OPERATIONS, max(MIN_OPERATIONS, operations)),
        expired=lambda: clock.expired,
    )


def best_partition(
    costs: LayerCosts,
    device_chain: DeviceChain,
    m: int,
    state_factor: float,
    clock: Clock | None = None,
) -> StepPartition | None:
    """Return the partition with the shortest estimated step, or None if none fits in memory.

    It always has several stages where the model has several layers: if a single stage is best by the
    estimate, the layers are balanced over all devices. clock: when it expires, the best partition so far is
    returned; None: there is no limit.
    """
    devices = len(device_chain.kinds)
    max_replicas = max(1, devices - 1)
    partition = partition_for_step(
        costs, device_chain, microbatches=m, state_factor=state_factor, max_replicas=max_replicas,
        **limits(clock),
    )  # fmt: skip
    if partition is not None and len(partition.stages) == 1:
        return balanced_partition(costs, list(range(min(devices, len(costs.successors)))))
    return partition


def _shortest_period_partition(costs: LayerCosts, device_chain: DeviceChain) -> StepPartition:
    """Partition for a schedule without a flush, where the slowest stage decides (shortest_period.py)."""
    devices = len(device_chain.kinds)
    layers = Layers(
        costs.forward[0], costs.backward[0], costs.activation, costs.parameters, costs.successors
    )
    # A single device has no link and sends nothing, so any bandwidth will do.
    bandwidth = min(device_chain.bandwidth, default=1e12)
    partition = partition_for_period(layers, devices, bandwidth=bandwidth, counting="crossing")
    if len(partition.stages) == 1:
        return balanced_partition(costs, list(range(min(devices, len(costs.successors)))))
    stages, first_device = [], 0
    for stage in partition.stages:
        stage_devices = tuple(range(first_device, first_device + stage.replicas))
        # False: no recomputation; 0.0: memory is not estimated.
        stages.append(StepStage(stage.layers, stage_devices, False, stage.seconds, 0.0))
        first_device += stage.replicas
    # The result's `seconds` are those of a period (one micro-batch), not of a step.
    return StepPartition(tuple(stages), partition.period, partition.exact, partition.ideals)


def balanced_partition(costs: LayerCosts, stage_devices: Sequence[int]) -> StepPartition:
    """Cut one topological order into runs, one per stage, so that the slowest run is as fast as possible.

    stage_devices: the device of each stage.
    """
    order, stage_count = topological_order(costs.successors), len(stage_devices)
    if stage_count > len(order):
        raise InputError(
            f"{stage_count} stages need at least as many layers, and the model has {len(order)}: "
            "ask for fewer stages."
        )
    # Every device counts as one of the first kind ([0]).
    seconds = [costs.forward[0][v] + costs.backward[0][v] for v in order]
    sums = [0.0]
    for layer_seconds in seconds:
        sums.append(sums[-1] + layer_seconds)
    # best[k][i]: (seconds of the slowest run, start of the last run) of the first i layers in k runs. The
    # last run has the layers j to i - 1 of the order.
    best: list[list[tuple[float, int]]] = [[(0.0, 0)] + [(float("inf"), 0)] * len(order)]
    for k in range(1, stage_count + 1):
        row = [(float("inf"), 0)] * (len(order) + 1)
        for i in range(k, len(order) + 1):
            row[i] = min((max(best[k - 1][j][0], sums[i] - sums[j]), j) for j in range(k - 1, i))
        best.append(row)
    ends, i = [], len(order)  # ends: (start, end) of each run, the last run first
    for k in range(stage_count, 0, -1):
        ends.append((best[k][i][1], i))
        i = best[k][i][1]
    # False: no recomputation; 0.0: memory is not estimated.
    stages = tuple(
        StepStage(tuple(order[a:b]), (stage_devices[s],), False, sums[b] - sums[a], 0.0)
        for s, (a, b) in enumerate(reversed(ends))
    )
    # False: not exact; 0: no ideals (see StepPartition). The result's `seconds` are those of one
    # micro-batch in the slowest stage, not of a step.
    return StepPartition(stages, best[stage_count][-1][0], False, 0)
