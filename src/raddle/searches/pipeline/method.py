"""Chooses stages, replicas, micro-batches, schedule and recomputation: the search of the method `pipeline`.

1. For each number of micro-batches, a partitioner (shortest_step.py) assigns layers to stages and stages
   to devices. It minimises an estimate of the step time. Such an assignment is a *partition*.
2. The partitions with the shortest estimates are simulated. For this, the graph is captured again with the
   size of a micro-batch. Where a stage has several devices, a baseline method (`data`, `spatial`, or `owt`:
   one weird trick) tiles its operators. Each partition is simulated with each schedule and each of these
   methods.
3. The result is the fastest simulated plan that fits in memory.

If memory is short, plans that need less memory are tried too: recomputation of whole stages, spatial tiles
inside a stage, and the schedule `gems`, where activations of only one micro-batch are saved at a time.
"""

# m: number of micro-batches

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil

from raddle.clusters import Cluster
from raddle.costs.compute import ComputeCosts
from raddle.errors import InputError, OutOfTime
from raddle.graph.gradients import active_values
from raddle.graph.graph import Graph
from raddle.plans.optimizers import optimizer_info
from raddle.plans.pipelining import schedule_splits_backward, steps_to_simulate
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.searches.baselines.data import data
from raddle.searches.grids import Tiles
from raddle.searches.pipeline.layer_graph import (
    LayerCostModel,
    LayerGraph,
    build_device_chain,
    build_layer_graph,
    stage_op_names,
)
from raddle.searches.pipeline.layers import DeviceChain
from raddle.searches.pipeline.request import PipelineRequest, best_partition, limits
from raddle.searches.pipeline.shortest_step import StepPartition, partition_for_step
from raddle.searches.pipeline.stage_tiles import STAGE_METHODS, stage_tiles
from raddle.searches.settings import PipelineResult, SearchResult, Settings
from raddle.searches.starts import BaselineFunction
from raddle.simulation.memory.check_memory import fits
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.timeline import simulate

MAX_MICROBATCHES = 64
MAX_SIMULATED = 4  # partitions that are simulated, besides those tried when memory is short
SIMULATED_STEPS = 2  # training steps in one simulation
PARTITION_SHARE = 0.5  # of the budget, for the partitioner; the other half is for simulations


@dataclass(frozen=True)
class PipelineCandidate:
    """A pipeline plan with its simulated metrics."""

    name: str  # for people: "4 stages, 8 micro-batches, 1f1b"
    result: SearchResult
    step_seconds: float
    peak_bytes: int  # peak memory of the device that needs the most
    fits: bool  # whether every device has enough memory
    simulated: bool = True  # False: there was no time, and only the time is estimated

    def row(self) -> dict[str, object]:
        """Return the entry for the list `tried` of a plan file."""
        return {
            "name": self.name,
            "step_ms": 1e3 * self.step_seconds,
            "simulated": self.simulated,
            "fits": self.fits,
            "peak_bytes": self.peak_bytes,
            "recompute": None,  # only the method `auto` counts recomputed blocks
        }


def pipeline_candidates(
    graph: Graph,
    cluster: Cluster,
    settings: Settings,
    *,
    one_microbatch: bool = False,
    max_simulated: int = MAX_SIMULATED,
) -> list[PipelineCandidate]:
    """Return simulated candidates, the best first.

    one_microbatch: consider only plans with a single micro-batch, the whole batch.
    max_simulated: how many partitions are simulated.
    """
    pipeline_search = PipelineSearch(graph, cluster, settings)
    return pipeline_search.candidates(one_microbatch=one_microbatch, max_simulated=max_simulated)


def search(graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
    """Return the fastest pipeline that fits; if none fits, the one with the smallest peak memory.

    Uses the schedule, stages and micro-batches that the user requests in the settings.
    """
    if len(cluster.devices) < 2:
        raise InputError(f"'{cluster.name}' has one device: a pipeline needs at least two.")
    settings = settings.with_running_clock()
    pipeline_search = PipelineSearch(graph, cluster, settings)
    if settings.schedule or settings.stages or settings.microbatches:
        candidates = pipeline_search.requested_candidates()
    else:
        candidates = pipeline_search.candidates(one_microbatch=False, max_simulated=MAX_SIMULATED)
    if not candidates:
        raise InputError(f"no pipeline was found for '{graph.name}' on '{cluster.name}'.")
    rows = tuple(c.row() for c in candidates)
    # start: the candidate that became the plan. stopped: why the search ended.
    stopped = "budget" if pipeline_search.clock.expired else "candidates"
    return replace(candidates[0].result, start=candidates[0].name, stopped=stopped, tried=rows)


class PipelineSearch:
    """A search for one graph and cluster; it collects the candidates that it simulates in `simulated`."""

    def __init__(self, graph: Graph, cluster: Cluster, settings: Settings) -> None:
        self.graph, self.cluster, self.settings = graph, cluster, settings
        self.clock = settings.running_clock
        self.device_count = len(cluster.devices)
        self.layer_graph = build_layer_graph(graph)
        active = active_values(graph)  # the values that have a gradient
        # bn="local": the cost of a batch norm is that of one call for the micro-batch.
        self.cost_model = LayerCostModel(
            self.layer_graph, cluster, ComputeCosts(graph, active, settings.profile, bn="local")
        )
        self.device_chain = build_device_chain(cluster)
        # Bytes held for each byte of parameters: weight, gradient, optimizer state.
        self.state_factor = float(optimizer_info(settings.optimizer).memory_elements)
        self.simulated: list[PipelineCandidate] = []
        # Whether no partition fits in memory for some number of micro-batches.
        self.memory_is_short = False
        self.refusals: list[str] = []  # why other partitions could not be simulated

    def requested_candidates(self) -> list[PipelineCandidate]:
        """Return simulated plans that keep the user's request, the best first.

        Stages and micro-batches that the request leaves open are searched.
        """
        request = PipelineRequest(
            self.settings.schedule, self.settings.stages, self.settings.microbatches
        )
        batch = self.graph.batch
        request = request.validated(batch, self.device_count)
        with suppress(OutOfTime):
            for m in request.microbatch_counts(batch, self.device_count):
                partition = request.partition(
                    self.cost_model.micro_batch_costs(ceil(batch / m)),
                    self.device_chain,
                    m,
                    self.state_factor,
                    self.clock,
                )
                if partition is not None:
                    self.try_partition(m, partition, request.schedule or "1f1b", request.workers)
        if not self.simulated and self.refusals:
            raise InputError(self.refusals[0])
        return self.ranked()

    def candidates(self, *, one_microbatch: bool, max_simulated: int) -> list[PipelineCandidate]:
        """Return simulated plans of a search without a request of the user; see `pipeline_candidates`."""
        with suppress(OutOfTime):
            self._try_candidates(one_microbatch=one_microbatch, max_simulated=max_simulated)
        return self.ranked()

    def ranked(self) -> list[PipelineCandidate]:
        """Return the candidates so far, the best first."""
        return sorted(
            self.simulated, key=lambda c: (not c.fits, c.step_seconds if c.fits else c.peak_bytes)
        )

    def _try_candidates(self, *, one_microbatch: bool, max_simulated: int) -> None:
        """Simulate the partitions with the shortest estimates, and others if memory is short."""
        partitions = sorted(
            self._partitions(one_microbatch=one_microbatch),
            key=lambda candidate: candidate[1].seconds,
        )
        for m, partition in partitions[:max_simulated]:
            if self.clock.expired and self.simulated:
                break
            for schedule in self._schedules(partition, m):
                self.try_partition(m, partition, schedule)
        recomputes = any(
            s.recompute for _, chosen in partitions[:max_simulated] for s in chosen.stages
        )
        if (recomputes or self.memory_is_short) and not one_microbatch:
            self._try_sequential()
        if not any(c.fits for c in self.simulated):
            self._try_least_memory()

    def _partitions(self, *, one_microbatch: bool) -> Iterator[tuple[int, StepPartition]]:
        """Yield (m, best partition by the partitioner's estimate) for various numbers of micro-batches."""
        batch = self.graph.batch
        counts = (
            {1}
            if one_microbatch
            else {2**k for k in range(7)} | {self.device_count, 2 * self.device_count}
        )
        microbatch_counts = sorted(m for m in counts if m <= min(batch, MAX_MICROBATCHES))
        clock = self.clock.part(PARTITION_SHARE)
        for done, m in enumerate(microbatch_counts):
            if done and clock.expired:
                return
            self.settings.on_progress(
                {"step": f"cutting, {m} micro-batches", "done": done, "of": len(microbatch_counts)}
            )
            costs = self.cost_model.micro_batch_costs(ceil(batch / m))
            share = 1 / (len(microbatch_counts) - done)
            partition = best_partition(
                costs, self.device_chain, m, self.state_factor, clock.part_of_rest(share)
            )
            if partition is not None:
                yield m, partition
            else:
                self.memory_is_short = True

    def _schedules(self, partition: StepPartition, m: int) -> list[str]:
        """Return the names of the schedules to simulate.

        "" runs one micro-batch after the other; "zb-h1" has a split backward (zero bubble).
        """
        one_device_per_stage = all(len(stage.devices) == 1 for stage in partition.stages)
        if len(partition.stages) == 1:
            return [""]
        if m == 1:
            return ["1f1b"]
        return ["1f1b", "zb-h1"] if one_device_per_stage else ["1f1b"]

    def _try_sequential(self) -> None:
        """Simulate plans that run one micro-batch after the other, each on all devices, without a schedule.

        When memory is short, this may avoid recomputation: only one micro-batch is in flight.
        """
        batch = self.graph.batch
        for m in sorted({batch, min(batch, 2 * self.device_count)}):
            costs = self.cost_model.micro_batch_costs(ceil(batch / m))
            partition = partition_for_step(
                costs, self._unlimited_memory, microbatches=m, state_factor=self.state_factor,
                recompute=(False,), max_replicas=self.device_count, **limits(self.clock.part(0.1)),
            )  # fmt: skip
            if partition is not None:
                self.try_partition(m, partition, "")

    @property
    def _unlimited_memory(self) -> DeviceChain:
        """The chain of devices without a memory limit; the simulation then checks the real peak memory."""
        return replace(self.device_chain, capacity=(float("inf"),) * self.device_count)

    def _try_least_memory(self) -> None:
        """Simulate the plans that need the least memory; this is tried if no other plan fits.

        These plans have small micro-batches, recompute every stage, and use stages of one device, of up to
        two devices, and of up to all devices (whose spatial tiles divide an image). With one device per
        stage the schedule `gems` is simulated as well.
        """
        device_chain = self._unlimited_memory
        batch = self.graph.batch
        for m in sorted({batch, min(batch, 2 * self.device_count)}):
            costs = self.cost_model.micro_batch_costs(ceil(batch / m))
            for replicas in sorted({1, min(2, self.device_count), self.device_count}):
                partition = partition_for_step(
                    costs,
                    device_chain,
                    microbatches=m,
                    state_factor=self.state_factor,
                    recompute=(True,),
                    max_replicas=replicas,
                    **limits(self.clock.part(0.1)),
                )
                if partition is None:
                    continue
                self.try_partition(m, partition, "1f1b" if len(partition.stages) > 1 else "")
                if all(len(s.devices) == 1 for s in partition.stages) and m % 2 == 0:
                    self.try_partition(m, partition, "gems")

    # -- from a partition to a plan ----------------------------------------------------------------

    def try_partition(
        self,
        m: int,
        partition: StepPartition,
        schedule: str,
        workers: tuple[tuple[int, ...], ...] = (),
        stage_methods: Mapping[str, BaselineFunction] = STAGE_METHODS,
    ) -> None:
        """Simulate a partition with one schedule; adds candidates or, if it is impossible, refusals.

        workers: the devices of each row of a schedule that the user wrote out; () for a named schedule.
        stage_methods: the functions that tile the operators of a stage with several devices, by name.
        """
        try:
            with self.settings.stopwatch.paused():  # capturing is no search time
                graph = self.graph.for_batch(ceil(self.graph.batch / m))
        except InputError as error:  # e.g. a batch norm over a single value per channel
            self.refusals.append(str(error))
            return
        if any(op.name not in self.layer_graph.layer_of for op in graph.ops):
            self.refusals.append(
                f"'{graph.name}' has other operators at {graph.batch} samples than at {self.graph.batch}: "
                "a module that looks at the size of its batch cannot have micro-batches of that size."
            )
            return
        if all(len(s.devices) == 1 for s in partition.stages):
            stage_methods = {"": data}
        for method, tile in stage_methods.items():
            parts = [
                f"{len(partition.stages)} stages",
                f"{m} micro-batches",
                *schedule.splitlines()[:1],  # its name, or the first row of one that the user wrote
            ]
            name = ", ".join([*parts, f"{method} inside"] if method else parts)
            # The number of simulations is not known beforehand, so the progress is always shown as a half.
            self.settings.on_progress({"step": f"simulating {name}", "done": 0.5, "of": 1})
            try:
                result = self._build_result(graph, m, partition, schedule, tile, workers)
                self.simulated.append(self._simulate(name, result))
            except InputError as error:  # the method cannot tile a stage on that many devices
                self.refusals.append(str(error))
            except OutOfTime:
                if not self.simulated:  # it is known by its estimate only
                    self.simulated.append(
                        PipelineCandidate(name, result, partition.seconds, 0, False, False)
                    )
                raise

    def _build_result(
        self, graph: Graph, m: int, partition: StepPartition, schedule: str, tile: BaselineFunction,
        workers: tuple[tuple[int, ...], ...],
    ) -> SearchResult:  # fmt: skip
        """Turn a partition into tiles and pipeline settings; `graph` is that of one micro-batch."""
        layer_graph = LayerGraph(
            graph, self.layer_graph.layer_of, self.layer_graph.op_names, self.layer_graph.successors
        )
        stages = stage_op_names(layer_graph, [stage.layers for stage in partition.stages])
        bn = self.settings.bn
        # A plan with a single stage lists no stages. A block that is recomputed is a whole stage.
        pipeline = PipelineResult(
            graph,
            m,
            stages if len(stages) > 1 else (),
            schedule,
            tuple(
                op_names
                for op_names, s in zip(stages, partition.stages, strict=True)
                if s.recompute
            ),
            schedule_splits_backward(schedule),
            # A micro-batch does not see the others, so its batch norms cannot use the whole batch.
            "microbatch" if bn == "global" and m > 1 else bn,
            workers,
        )
        tiles: Tiles = {}
        for names, stage in zip(stages, partition.stages, strict=True):
            tiles |= stage_tiles(graph, self.cluster, set(names), stage.devices, tile)
        return SearchResult(tiles, pipeline=pipeline)

    def _simulate(self, name: str, result: SearchResult) -> PipelineCandidate:
        """Simulate the plan and return it with its step time and peak memory."""
        assert result.pipeline is not None
        plan = replace(
            Plan(
                result.tiles, self.device_count, batch=self.graph.batch, **self.settings.plan_fields
            ),
            **result.pipeline.plan_fields,
        )
        # More steps if they overlap, until a steady state is reached.
        plan = replace(plan, steps=steps_to_simulate(plan, SIMULATED_STEPS))
        look = self.clock.look
        program = lower(result.pipeline.graph, plan, look=look)
        timeline = simulate(program, self.cluster, self.settings.profile, look=look)
        peaks = peak_bytes(timeline, look=look)
        return PipelineCandidate(
            name, result, timeline.step_seconds, max(peaks), fits(peaks, self.cluster)
        )
