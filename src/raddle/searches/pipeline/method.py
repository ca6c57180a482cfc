"""`pipeline`: stages, replicas, micro-batches, schedule and recomputation, together.

For each number of micro-batches the partitioner (stages.py) gives the best cut by its estimate. The most
promising are captured at their size, tiled inside of each stage by another method where a stage has several
devices, and simulated under several schedules; the fastest that fits in memory is the answer. Where memory
is short, what is left decides the order: 1F1B keeps least of the fast ones, recomputation keeps less,
spatial tiles divide what a sample needs, and GEMS keeps one micro-batch alone.
"""

# m: micro-batches, P: stages, r: devices of a stage

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from raddle.clusters import Cluster
from raddle.costs.compute import ComputeCosts
from raddle.errors import InputError
from raddle.graph.gradients import active_values
from raddle.graph.graph import Graph
from raddle.plans.optimizers import optimizer_costs
from raddle.plans.pipelining import schedule_splits, steps_to_simulate
from raddle.plans.plan import Plan
from raddle.plans.tiling import Grid, Irregular, Tile, Tiling
from raddle.program.lower import lower
from raddle.searches.baselines.data import data
from raddle.searches.baselines.model import owt
from raddle.searches.baselines.spatial import spatial
from raddle.searches.grids import Tiles, batch_independent, copies, copies_unless_opaque
from raddle.searches.pipeline.layer_graph import (
    LayerCostModel,
    LayerGraph,
    build_device_chain,
    build_layer_graph,
    stage_op_names,
)
from raddle.searches.pipeline.layers import DeviceChain
from raddle.searches.pipeline.request import Asked, pipeline_of
from raddle.searches.pipeline.shortest_step import StepPartition, partition_for_step
from raddle.searches.settings import Clock, PipelineResult, SearchResult, Settings
from raddle.searches.starts import first_devices
from raddle.simulation.memory.check_memory import fits
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.timeline import simulate

MOST = 64  # micro-batches
PROMISING = 4  # cuts that are simulated
INSIDE = {"data": data, "spatial": spatial, "owt": owt}  # how a stage is divided among its devices
STEPS = 2


@dataclass(frozen=True)
class Candidate:
    """A pipeline plan, and what simulating it gave."""

    name: str
    found: SearchResult
    step: float  # seconds
    peak: int  # bytes, the most of any device beyond its memory
    fits: bool

    def row(self) -> dict[str, object]:
        return {
            "name": self.name,
            "step_ms": 1e3 * self.step,
            "simulated": True,
            "fits": self.fits,
            "peak_bytes": self.peak,
            "recompute": None,
        }


def pipeline(
    graph: Graph,
    cluster: Cluster,
    settings: Settings,
    *,
    one_batch: bool = False,
    promising: int = PROMISING,
) -> list[Candidate]:
    """Candidates, the best first; with `one_batch`, those alone that do not divide the batch."""
    found = _Pipelines(graph, cluster, settings)
    return found.candidates(one_batch=one_batch, promising=promising)


def search(graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
    """The fastest pipeline that fits; of those that do not fit, the smallest."""
    if len(cluster.devices) < 2:
        raise InputError(f"'{cluster.name}' has one device: a pipeline needs at least two.")
    if settings.schedule or settings.stages or settings.microbatches:
        found = _Pipelines(graph, cluster, settings).asked()
    else:
        found = pipeline(graph, cluster, settings)
    if not found:
        raise InputError(f"no pipeline was found for '{graph.name}' on '{cluster.name}'.")
    rows = tuple(c.row() for c in found)
    return replace(found[0].found, start=found[0].name, stopped="candidates", tried=rows)


class _Pipelines:
    def __init__(self, graph: Graph, cluster: Cluster, settings: Settings) -> None:
        self.graph, self.cluster, self.settings = graph, cluster, settings
        self.clock = Clock(settings.budget, settings.stopwatch)
        self.count = len(cluster.devices)
        self.nodes = build_layer_graph(graph)
        active = active_values(graph)
        self.costs = LayerCostModel(
            self.nodes, cluster, ComputeCosts(graph, active, settings.profile, bn="local")
        )
        self.line = build_device_chain(cluster)
        self.static = float(optimizer_costs(settings.optimizer).held)
        self.simulated: list[Candidate] = []
        self.short = False  # whether some numbers of micro-batches need more memory than there is
        self.reasons: list[str] = []  # why others were not

    def asked(self) -> list[Candidate]:
        """What the user asks for, with what is left to choose."""
        wanted = Asked(self.settings.schedule, self.settings.stages, self.settings.microbatches)
        batch = self.graph.batch
        wanted = wanted.checked(batch, self.count)
        for m in wanted.counts(batch, self.count):
            cut = wanted.cut(
                self.costs.micro_batch_costs(ceil(batch / m)), self.line, m, self.static
            )
            if cut is not None:
                self._try(m, cut, wanted.schedule or "1f1b", wanted.workers)
        if not self.simulated and self.reasons:
            raise InputError(self.reasons[0])
        return sorted(self.simulated, key=lambda c: (not c.fits, c.step if c.fits else c.peak))

    def candidates(self, *, one_batch: bool, promising: int) -> list[Candidate]:
        cuts = sorted(self._cuts(one_batch=one_batch), key=lambda cut: cut[1].seconds)
        for m, cut in cuts[:promising]:
            if self.clock.expired and self.simulated:
                break
            for schedule in self._schedules(cut, m):
                self._try(m, cut, schedule)
        again = any(s.recompute for _, cut in cuts[:promising] for s in cut.stages)
        if (again or self.short) and not one_batch:
            self._together()
        if not any(c.fits for c in self.simulated):
            self._squeeze()
        return sorted(self.simulated, key=lambda c: (not c.fits, c.step if c.fits else c.peak))

    def _cuts(self, *, one_batch: bool) -> Iterator[tuple[int, StepPartition]]:
        """The best cut for every number of micro-batches, by the partitioner's estimate."""
        batch = self.graph.batch
        counts = {1} if one_batch else {2**k for k in range(7)} | {self.count, 2 * self.count}
        chosen = sorted(m for m in counts if m <= min(batch, MOST))
        for done, m in enumerate(chosen):
            self.settings.on_progress(
                {"step": f"cutting, {m} micro-batches", "done": done, "of": len(chosen)}
            )
            work = self.costs.micro_batch_costs(ceil(batch / m))
            found = pipeline_of(work, self.line, m, self.static)
            if found is not None:
                yield m, found
            else:
                self.short = True

    def _schedules(self, cut: StepPartition, m: int) -> list[str]:
        alone = all(len(stage.devices) == 1 for stage in cut.stages)
        if len(cut.stages) == 1:
            return [""]
        if m == 1:
            return ["1f1b"]
        return ["1f1b", "zb-h1"] if alone else ["1f1b"]

    def _together(self) -> None:
        """Memory is short: all devices on one micro-batch after the other, which may spare recomputing."""
        batch = self.graph.batch
        for m in sorted({batch, min(batch, 2 * self.count)}):
            work = self.costs.micro_batch_costs(ceil(batch / m))
            found = partition_for_step(
                work, self._free, microbatches=m, state_factor=self.static, recompute=(False,),
                max_replicas=self.count,
            )  # fmt: skip
            if found is not None:
                self._try(m, found, "")

    @property
    def _free(self) -> DeviceChain:
        """The devices, with as much memory as one likes: simulating tells what is needed."""
        return replace(self.line, capacity=(float("inf"),) * self.count)

    def _squeeze(self) -> None:
        """Nothing fits: the smallest micro-batches, recomputed, in halves of images, and mirrored."""
        free = self._free
        batch = self.graph.batch
        for m in sorted({batch, min(batch, 2 * self.count)}):
            work = self.costs.micro_batch_costs(ceil(batch / m))
            for replicas in sorted({1, min(2, self.count), self.count}):
                found = partition_for_step(
                    work,
                    free,
                    microbatches=m,
                    state_factor=self.static,
                    recompute=(True,),
                    max_replicas=replicas,
                )
                if found is None:
                    continue
                self._try(m, found, "1f1b" if len(found.stages) > 1 else "")
                if all(len(s.devices) == 1 for s in found.stages) and m % 2 == 0:
                    self._try(m, found, "gems")

    # -- from a cut to a plan ----------------------------------------------------------------------

    def _try(
        self, m: int, cut: StepPartition, schedule: str, workers: tuple[tuple[int, ...], ...] = ()
    ) -> None:
        try:
            with self.settings.stopwatch.paused():
                graph = self.graph.for_batch(ceil(self.graph.batch / m))
        except InputError as error:  # batch statistics of one sample, say, that has one pixel left
            self.reasons.append(str(error))
            return
        if any(op.name not in self.nodes.layer_of for op in graph.ops):
            self.reasons.append(
                f"'{graph.name}' has other operators at {graph.batch} samples than at {self.graph.batch}: "
                "a module that looks at the size of its batch cannot have micro-batches of that size."
            )
            return
        inside = [""] if all(len(s.devices) == 1 for s in cut.stages) else [*INSIDE]
        for method in inside:
            words = [f"{len(cut.stages)} stages", f"{m} micro-batches", *schedule.splitlines()[:1]]
            name = ", ".join([*words, f"{method} inside"] if method else words)
            self.settings.on_progress({"step": f"simulating {name}", "done": 0.5, "of": 1})
            try:
                found = self._found(graph, m, cut, schedule, method, workers)
                self.simulated.append(self._judged(name, found))
            except InputError as error:  # the method cannot divide a stage so
                self.reasons.append(str(error))

    def _found(
        self, graph: Graph, m: int, cut: StepPartition, schedule: str, method: str,
        workers: tuple[tuple[int, ...], ...],
    ) -> SearchResult:  # fmt: skip
        nodes = LayerGraph(graph, self.nodes.layer_of, self.nodes.op_names, self.nodes.successors)
        stages = stage_op_names(nodes, [stage.layers for stage in cut.stages])
        bn = self.settings.bn
        staged = PipelineResult(
            graph,
            m,
            stages if len(stages) > 1 else (),
            schedule,
            tuple(own for own, s in zip(stages, cut.stages, strict=True) if s.recompute),
            schedule_splits(schedule),
            "microbatch" if bn == "global" and m > 1 else bn,
            workers,
        )
        tiles: Tiles = {}
        for own, stage in zip(stages, cut.stages, strict=True):
            tiles |= self._tiles(graph, set(own), stage.devices, method)
        return SearchResult(tiles, pipeline=staged)

    def _tiles(
        self, graph: Graph, own: set[str], devices: tuple[int, ...], method: str
    ) -> dict[str, Tiling]:
        """A stage's operators on its devices, as a method would divide them."""
        if len(devices) == 1:
            return {op.name: copies(op, devices) for op in graph.ops if op.name in own}
        made = INSIDE[method](graph, first_devices(self.cluster, len(devices)))
        alone = batch_independent(graph)
        tiles: dict[str, Tiling] = {}
        for op in (op for op in graph.ops if op.name in own):
            # What is read in other stages too must not be on their devices.
            tiles[op.name] = (
                copies_unless_opaque(op, devices)
                if op.name in alone
                else _on(made[op.name], devices)
            )
        return tiles

    def _judged(self, name: str, found: SearchResult) -> Candidate:
        assert found.pipeline is not None
        plan = replace(
            Plan(found.tiles, self.count, batch=self.graph.batch, **self.settings.plan_fields),
            **found.pipeline.plan_fields,
        )
        plan = replace(plan, steps=steps_to_simulate(plan, STEPS))
        timeline = simulate(lower(found.pipeline.graph, plan), self.cluster, self.settings.profile)
        peaks = peak_bytes(timeline)
        return Candidate(name, found, timeline.step_seconds, max(peaks), fits(peaks, self.cluster))


def _on(tiling: Tiling, devices: tuple[int, ...]) -> Tiling:
    """The first devices' tiles on others."""
    if isinstance(tiling, Grid):
        return replace(tiling, devices=tuple(devices[d] for d in tiling.devices))
    return Irregular(tuple(Tile(t.box, devices[t.device]) for t in tiling.tiles))
