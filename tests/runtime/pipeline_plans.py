"""Makes pipeline plans by hand, and compares them with the plain module, micro-batch by micro-batch.

The loss of a micro-batch is weighted by its samples. If replicas of a stage have separate running
statistics, those of the worker that runs micro-batch 0 are compared.
"""

# s: stage, m: micro-batch, w: worker; P stages (workers), M micro-batches

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from equality import (
    Batch,
    Mismatch,
    TrainingResult,
    _Rounding,
    compare,
    compare_gradients,
    program_bytes,
    without_dropout,
)
from torch import Tensor, nn

from raddle import zoo
from raddle.clusters import cluster
from raddle.graph.capture import capture
from raddle.graph.graph import Graph, Op
from raddle.graph.supervised import supervised
from raddle.plans.pipelining import schedule_of, stage_of, workers_of_micro_batch
from raddle.plans.plan import Plan
from raddle.plans.tiling import Grid, Tiling, even_cuts, whole_tiling
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.program import Key, Program
from raddle.runtime.threads import run_threads
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.timeline import simulate

# Pairs: micro-batches in the order in which they update buffers, and the names of these buffers.
Updates = tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]


class PipelineTask:
    """A module with its loss, captured for one micro-batch."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Batch,
        targets: Batch = (),
        loss: Callable[..., Tensor] | None = None,
        *,
        steps: int = 2,
        lr: float = 0.05,
    ) -> None:
        self.model, self.loss, self.lr, self.steps = model.train(), loss, lr, steps
        self.inputs, self.example = len(inputs), [*inputs, *targets]
        self.graph: Graph = capture(
            self.model, (*inputs, *targets), loss and supervised(loss, targets=len(targets))
        )
        self._plain: dict[tuple[tuple[int, ...], Updates], TrainingResult] = {}
        self._batches: dict[tuple[int, ...], list[list[list[Tensor]]]] = {}

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.lr, momentum=0.9, weight_decay=0.01)

    def batches(self, sizes: tuple[int, ...]) -> list[list[list[Tensor]]]:
        """Batches of these sizes for each step and micro-batch: floats get noise, integers are permuted."""
        if sizes not in self._batches:
            generator = torch.Generator().manual_seed(len(sizes))

            def another(name: str, x: Tensor, size: int) -> Tensor:
                if x.is_floating_point():
                    x = x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype)
                elif x.ndim:
                    x = x[torch.randperm(len(x), generator=generator)]
                letters = self.graph.values[name].letters
                return x.narrow(letters.index("n"), 0, size) if "n" in letters else x

            named = list(zip(self.graph.inputs, self.example, strict=True))
            self._batches[sizes] = [
                [[another(name, x, size) for name, x in named] for size in sizes]
                for _ in range(self.steps)
            ]
        return self._batches[sizes]

    def plain(self, sizes: tuple[int, ...], updates: Updates = ()) -> TrainingResult:
        """The result of training the unmodified module; computed once."""
        if (sizes, updates) not in self._plain:
            self._plain[sizes, updates] = self._train(sizes, updates)
        return self._plain[sizes, updates]

    def _train(self, sizes: tuple[int, ...], updates: Updates) -> TrainingResult:
        model = copy.deepcopy(self.model)
        optimizer = self.optimizer(model.parameters())
        losses, norms = [], []
        for micro_batches in self.batches(sizes):
            optimizer.zero_grad()
            buffers = self._buffers(model, micro_batches, updates)
            total = 0.0
            for batch, size in zip(micro_batches, sizes, strict=True):
                value = model(*batch[: self.inputs])
                if self.loss is not None:
                    value = self.loss(value, *batch[self.inputs :])
                value = value * (size / sum(sizes))
                value.backward()
                total += value.item()
            losses.append(total)
            gradients = {
                n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
            }
            norms.append(float(torch.cat([g.flatten() for g in gradients.values()]).norm()))
            optimizer.step()
            for name, buffer in buffers.items():
                model.get_buffer(name).copy_(buffer)
        before, state = self.model.state_dict(), model.state_dict()
        changed = frozenset(k for k, v in state.items() if not torch.equal(v, before[k]))
        return TrainingResult(losses, state, gradients, changed, max(*norms, 1e-6))

    def _buffers(
        self, model: nn.Module, micro_batches: Sequence[Batch], updates: Updates
    ) -> dict[str, Tensor]:
        """New values of buffers that are not updated by all micro-batches in their order."""
        buffers: dict[str, Tensor] = {}
        for sequence, names in updates:
            if sequence != tuple(range(len(micro_batches))):
                other = copy.deepcopy(model)
                with torch.no_grad():
                    for m in sequence:
                        other(*micro_batches[m][: self.inputs])
                buffers.update((name, other.get_buffer(name)) for name in names)
        return buffers

    def is_fragile(self, plan: Plan) -> bool:
        """Whether rounding errors alone change the result, for example at a kink of relu at zero."""
        plain, key = self._expected(lower(self.graph, plan))
        with _Rounding():
            rounded = self._train(*key)
        try:
            compare(self.graph, plain, rounded.losses, rounded.state)
            compare_gradients(plain, rounded.gradients)
        except Mismatch:
            return True
        return False

    def _expected(self, program: Program) -> tuple[TrainingResult, Any]:
        plan = program.plan
        key = tuple(program.micro_batch_sizes), updates_of(plan, self.graph)
        return self.plain(*key), key

    def verify(self, plan: Plan) -> Program:
        """Lowers, checks, simulates and runs a plan; raises if a result or a byte count is wrong."""
        assert plan.steps == self.steps
        program = lower(self.graph, plan)
        check(program)
        timeline = simulate(program, cluster(f"local:{plan.devices}"))
        assert all(nbytes >= 0 for nbytes in peak_bytes(timeline))
        batches = self.batches(tuple(program.micro_batch_sizes))

        def feed(key: Key) -> dict[str, Tensor]:
            return dict(zip(self.graph.inputs, batches[key.step][key.micro_batch], strict=True))

        state = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        result = run_threads(program, state, self.optimizer, feed)
        plain, _ = self._expected(program)
        compare(self.graph, plain, result.losses, result.state)
        compare_gradients(plain, result.gradients)
        expected_bytes = program_bytes(program)
        assert result.sent == expected_bytes, (
            f"sent {result.sent}, the program says {expected_bytes}"
        )
        simulated = timeline.bytes_by_pair()
        assert simulated == expected_bytes, (
            f"simulated {simulated}, the program says {expected_bytes}"
        )
        return program


# -- whose running statistics count ------------------------------------------------------------------


def updates_of(plan: Plan, graph: Graph) -> Updates:
    """The buffer updates that checkpoints contain: of the worker that runs micro-batch 0 of a stage."""
    if not plan.stages:
        return ()
    schedule, stage_by_op = schedule_of(plan), stage_of(plan)
    workers_by_micro_batch = [
        workers_of_micro_batch(plan, schedule, m) for m in range(plan.microbatches)
    ]
    stage_by_value = {o: stage_by_op[op.name] for op in graph.ops for o in op.outputs}
    updates: dict[tuple[int, ...], list[str]] = {}
    for buffer, value in graph.updates.items():
        s = stage_by_value[value]
        row = schedule.rows[workers_by_micro_batch[0][s]]
        sequence = tuple(a.micro_batch for a in row if (a.phase, a.stage) == ("F", s))
        updates.setdefault(sequence, []).append(buffer)
    return tuple((sequence, tuple(names)) for sequence, names in updates.items())


# -- plans ---------------------------------------------------------------------------------------------


def cut_evenly(graph: Graph, count: int) -> tuple[tuple[str, ...], ...]:
    """Stages with equal numbers of operators."""
    names = [op.name for op in graph.ops]
    cuts = even_cuts(len(names), count)
    return tuple(tuple(names[a:b]) for a, b in pairwise(cuts))


def split(op: Op, letters: Mapping[str, int], devices: Sequence[int]) -> Tiling:
    """Splits an operator along the letters that it has; if it has none, copies it to each device."""
    cuts, count = [], 1
    for dim in op.space.dims:
        parts = letters.get(dim.name, 1)
        able = not dim.unsplittable and dim.size >= parts and count * parts <= len(devices)
        cuts.append(even_cuts(dim.size, parts if able else 1))
        count *= len(cuts[-1]) - 1
    if count < len(devices) and count > 1:
        return Grid(tuple(cuts), tuple(devices[:count]))
    return Grid(tuple(cuts), tuple(devices), len(devices) // count)


def stage_tiles(
    graph: Graph,
    stages: Sequence[Sequence[str]],
    devices: Sequence[Sequence[int]],
    splits: Sequence[Mapping[str, int]] = (),
) -> dict[str, Tiling]:
    """Tiles of all stages, each stage on its devices and split along its letters."""
    tiles: dict[str, Tiling] = {}
    for s, (names, stage_devices) in enumerate(zip(stages, devices, strict=True)):
        letters = splits[s] if splits else {}
        for name in names:
            op = graph.op(name)
            shape = [d.size for d in op.space.dims]
            tiles[name] = (
                split(op, letters, stage_devices)
                if len(stage_devices) > 1
                else whole_tiling(shape, stage_devices)
            )
    return tiles


def pipeline(
    piped: PipelineTask,
    workers: int,
    microbatches: int,
    schedule: str,
    *,
    chunks: int = 1,
    stages: Sequence[Sequence[str]] = (),
    **more: Any,
) -> Plan:
    """A pipeline with one device per worker; stage s is on worker s mod P."""
    graph = piped.graph
    stages = tuple(map(tuple, stages)) or cut_evenly(graph, workers * chunks)
    tiles = stage_tiles(graph, stages, [[s % workers] for s in range(len(stages))])
    return make_pipeline_plan(piped, tiles, workers, microbatches, stages, schedule, **more)


def make_pipeline_plan(
    piped: PipelineTask,
    tiles: Mapping[str, Tiling],
    devices: int,
    microbatches: int,
    stages: Sequence[Sequence[str]],
    schedule: str,
    **more: Any,
) -> Plan:
    more.setdefault("bn", "microbatch" if microbatches > 1 else "global")
    more.setdefault("split_backward", schedule.startswith("zb"))
    return Plan(
        tiles,
        devices,
        microbatches=microbatches,
        stages=tuple(map(tuple, stages)),
        schedule=schedule,
        steps=piped.steps,
        **more,
    )


# -- the zoo -------------------------------------------------------------------------------------------


@cache
def tiny(name: str, size: int) -> PipelineTask:
    """A model of the zoo in float64, without dropout, for micro-batches of `size` samples."""
    work = zoo.load(name, device="cpu", dtype=torch.float64, batch=size)
    model = without_dropout(work.model)
    return PipelineTask(model, list(work.batch[:-1]), [work.batch[-1]], work.loss.criterion)
