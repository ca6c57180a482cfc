"""Runs a program with all ranks as threads of this process: for tests and experiments.

A key names a step and a micro-batch. A SlotSource names a box of a tensor and the slot (numbered place)
that it fills. Pieces are boxes with their tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.interpret import Pieces, assemble
from raddle.plans.pipelining import is_asynchronous
from raddle.program.program import Key, Program
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.executor import Executor
from raddle.runtime.schedule_spans import Span, SpanRecorder
from raddle.transport.thread_transport import Hub

MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]  # makes it from parameters
MicroBatchInputs = Callable[[Key], Mapping[str, Tensor]]  # returns a micro-batch's inputs by name


@dataclass(frozen=True)
class Result:
    """The result of run_threads."""

    losses: list[float]  # of each step
    state: dict[str, Tensor]  # full parameters and buffers after the last step
    sent: dict[tuple[int, int], int]  # (source, target) -> bytes in all steps
    gradients: dict[str, Tensor]  # full gradients of the last step


def run_threads(
    program: Program,
    state: Mapping[str, Tensor],
    optimizer: MakeOptimizer,
    batches: MicroBatchInputs,
    seed: int = 0,
    spans: list[Span] | None = None,
) -> Result:
    """Runs all steps of a program with one thread for each device; returns losses, state and gradients.

    state: full parameters and buffers; optimizer: makes an optimizer from a list of parameters;
    batches(key): the inputs of a micro-batch by name; spans: if given, gets the recorded spans
    (schedule_spans.py).
    """
    hub = Hub(program.plan.devices)  # gives each thread a transport to the others
    ranks = [_Rank(program, hub, d, state, optimizer, batches, seed) for d in range(hub.size)]
    failures: list[tuple[int, BaseException]] = []

    def work(rank: _Rank) -> None:
        try:
            rank.run()
        except BaseException as error:
            failures.append((rank.number, error))
            rank.executor.transport.fail(str(error))

    threads = [threading.Thread(target=work, args=(r,), name=f"rank {r.number}") for r in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in ranks:
        rank.executor.close()
    if failures:
        number, error = failures[0]
        raise RuntimeError(f"rank {number} failed: {error}") from error
    sent = {
        (r.number, target): nbytes
        for r in ranks
        for target, nbytes in r.executor.transport.total_sent().items()
        if nbytes
    }
    if spans is not None:
        spans += [span for rank in ranks for span in rank.spans.spans]
    gradients = _assemble(program, [r.gradients for r in ranks])
    return Result(ranks[0].losses, _assemble_state(program, ranks), sent, gradients)


class _Rank:
    """One rank: it runs on one thread."""

    def __init__(
        self, program: Program, hub: Hub, number: int, state: Mapping[str, Tensor],
        optimizer: MakeOptimizer, batches: MicroBatchInputs, seed: int,
    ) -> None:  # fmt: skip
        self.program, self.number, self.batches = program, number, batches
        self.executor = Executor(program, hub.transport(number), seed=seed)
        self.executor.load(lambda s: state[s.name].detach()[_index_of(program, s)].clone())
        updated: list[Tensor] = [p for _, p in self.executor.updated_parameters()]
        self.optimizer = optimizer(updated) if updated else None
        self.executor.optimizer_step = self._update
        self.losses: list[float] = []
        self.gradients: dict[str, Pieces] = {}
        self.spans = SpanRecorder(program, lambda: len(self.losses))
        self.executor.record = self.spans.record
        if self.executor.parameter_sync is not None:
            self.executor.parameter_sync.on_update = self._keep_gradient

    def _keep_gradient(self, source: SlotSource, clock: int, gradient: Tensor) -> None:
        """Stores the gradient of a slice in the last step (sliced parameters). clock: the step, from 1."""
        if clock == self.program.plan.steps:
            pieces = self.gradients.setdefault(source.name, [])
            pieces.append((source.box, gradient.clone()))

    def _update(self) -> None:
        """Stores the gradients, then lets the optimizer update."""
        self.gradients = {}
        for source, parameter in self.executor.updated_parameters():
            if parameter.grad is not None:
                pieces = self.gradients.setdefault(source.name, [])
                pieces.append((source.box, parameter.grad.detach().clone()))
        if self.optimizer is not None:
            self.optimizer.step()

    def run(self) -> None:
        """Runs all steps."""
        if is_asynchronous(self.program.plan):
            self.losses = self.executor.run_steps(partial(self._feed, 0), 0).tolist()
            return
        if self.executor.parameter_sync is not None:
            self.executor.parameter_sync.start(self.optimizer)
        for step in range(self.program.plan.steps):
            loss = self.executor.run(partial(self._feed, step), step)
            self.losses.append(float(loss))
        self.executor.synchronize()

    def _feed(self, step: int, source: SlotSource) -> Tensor:
        """Returns the inputs of a slot, cut from the full micro-batch.

        step: the step at which this call of the executor begins; `key.step` counts from it.
        """
        key = source.key
        tensor = self.batches(Key(step + key.step, key.micro_batch))[source.name]
        return tensor[_index_of(self.program, source)]


def _index_of(program: Program, source: SlotSource) -> tuple[slice, ...]:
    """Returns the index of a slot's box within its full tensor."""
    graph = program.variant(source.key).graph
    return source.box.slices_within(Box.full(graph.values[source.name].shape))


def _assemble_state(program: Program, ranks: list[_Rank]) -> dict[str, Tensor]:
    """Returns full parameters and buffers, assembled from the pieces of all ranks."""
    by_rank: list[dict[str, Pieces]] = []
    for rank in ranks:
        pieces: dict[str, Pieces] = {}
        rank_actions, slots = rank.executor.rank_actions, rank.executor.slots
        for source in rank_actions.sources_with_role("parameter"):
            pieces.setdefault(source.name, []).append((source.box, slots[source.slot].detach()))
        for source in rank_actions.sources_with_role("buffer"):
            # current_buffers: buffer -> its boxes that this rank keeps up to date
            boxes = rank_actions.current_buffers.get(source.name, [])
            if source.name not in program.graph.updates:  # never updated: all ranks have it whole
                boxes = [source.box]
            pieces[source.name] = [
                (box, slots[source.slot][box.slices_within(source.box)]) for box in boxes
            ]
        by_rank.append(pieces)
    return _assemble(program, by_rank)


def _assemble(program: Program, by_rank: list[dict[str, Pieces]]) -> dict[str, Tensor]:
    """Returns name -> full tensor, from the pieces of all ranks; of equal boxes the first one counts."""
    result = {}
    for value in [*program.graph.parameters, *program.graph.buffers]:
        pieces: Pieces = []
        for rank_pieces in by_rank:
            pieces += [
                p
                for p in rank_pieces.get(value.name, [])
                if not any(p[0] == box for box, _ in pieces)
            ]
        if pieces:
            result[value.name] = assemble(pieces, Box.full(value.shape)).clone()
    return result
