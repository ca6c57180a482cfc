"""Trains one rank of a plan and compares its losses, gradients, parameters and buffers with a reference.

The reference is serial training of the plain module (plain_training.py) or, for schedules whose steps
overlap, a serial replay (serial_replay.py). Each rank compares the pieces of parameters that it holds, so
no parameter is gathered. A *source* names a piece: the parameter or buffer, and the box of its elements. A
*job* (runtime/job.py) is all that a rank needs to train: model, loss, batch, plan and program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.plans.pipelining import is_asynchronous
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.job import Job, optimizer_for
from raddle.runtime.schedule_spans import SpanRecorder
from raddle.runtime.trainer import Trainer
from raddle.transport.base import Transport
from raddle.verification.plain_training import PlainRun, batch_of_step
from raddle.verification.serial_replay import VersionRecord, replay


@dataclass
class Findings:
    """The results of one rank, over all steps."""

    losses: list[float] = field(default_factory=list)  # by step
    # "loss", "gradients", "parameters" or "buffers" -> (largest deviation, where it is). Deviations are
    # relative, and "where" is a text, such as "conv1.weight, step 2".
    worst: dict[str, tuple[float, str]] = field(default_factory=dict)
    sent: list[tuple[int, int]] = field(default_factory=list)  # (target rank, bytes)
    # (kind of collective, ranks, bytes of the full buffers)
    collective_bytes: list[tuple[str, list[int], int]] = field(default_factory=list)
    # Only where steps overlap: parameter -> the least and the most updates of earlier steps that a step did
    # not see (serial_replay.py).
    staleness: dict[str, tuple[int, int]] = field(default_factory=dict)
    # (step, action of the schedule, start, end), times in seconds: see runtime/schedule_spans.py
    spans: list[tuple[int, str, float, float]] = field(default_factory=list)

    def note(self, what: str, deviation: float, where: str) -> None:
        """Record a deviation of `what` if it is the largest so far; NaN counts as infinite."""
        deviation = math.inf if math.isnan(deviation) else deviation
        if what not in self.worst or deviation > self.worst[what][0]:
            self.worst[what] = deviation, where


def compare(
    job: Job,
    plain: PlainRun,
    transport: Transport,
    steps: int,
    seed: int,
    on_progress: Callable[[int], None] = lambda step: None,
) -> Findings:
    """Train this rank for some steps and return its deviations from the reference and the bytes sent.

    plain: the reference; empty if steps overlap, because the ranks then compute it by a serial replay.
    on_progress: called with the number of each step.
    """
    device = torch.device("cpu")
    optimizer = optimizer_for(job.plan.optimizer)
    try:
        trainer = Trainer(
            job.workload.model,
            job.program,
            optimizer,
            transport,
            device,
            loss=job.workload.loss,
            seed=seed,
        )
        findings = Findings()
        # Records when the actions of a pipeline schedule start and end.
        recorder = SpanRecorder(job.program, lambda: trainer.steps)
        trainer.executor.record = recorder.record
        if is_asynchronous(job.plan):
            _compare_overlapped(job, trainer, findings, steps, seed)
        else:
            _compare_gradients(trainer, plain, findings)
        for step in range(0 if is_asynchronous(job.plan) else steps):
            on_progress(step)
            loss = float(trainer.step(batch_of_step(job, step)))
            findings.losses.append(loss)
            expected = plain.losses[step]
            deviation = abs(loss - expected) / max(abs(expected), 1e-6)
            findings.note("loss", deviation, f"step {step}")
        trainer.synchronize()
        if not is_asynchronous(job.plan):
            _compare_state(trainer, plain, findings)
        transport.barrier()  # from here on, no rank needs data of another one
        trainer.executor.close()
    except BaseException as error:
        transport.fail(f"{type(error).__name__}: {error}")
        raise
    findings.spans = [*recorder.spans]
    findings.sent = sorted(
        (target, nbytes) for target, nbytes in transport.total_sent().items() if nbytes
    )
    findings.collective_bytes = sorted(
        (str(kind), list(ranks), nbytes)
        for (kind, ranks), nbytes in transport.collective_bytes.items()
        if nbytes
    )
    return findings


def _compare_overlapped(
    job: Job, trainer: Trainer, findings: Findings, steps: int, seed: int
) -> None:
    """Train with overlapping steps, and compare with a serial replay that uses the same weight versions."""
    trainer.step_runner.weight_uses = []  # a list makes the trainer log the versions
    losses = trainer.train([batch_of_step(job, step) for step in range(steps)])
    # Number of the slot that holds a piece -> the piece.
    pieces = {s.slot: (s.name, s.box) for s, _ in trainer.executor.parameters()}
    # A VersionRecord is a WeightUse (runtime/weight_stash.py) with the piece in place of its slot number.
    log = [VersionRecord(pieces[u.slot], *u[1:]) for u in trainer.step_runner.weight_uses]
    # The logs of all ranks in one list.
    records = [record for rank in trainer.setup.exchange(log) for record in rank]
    replayed = replay(job, records, steps, seed)
    for step, (loss, expected) in enumerate(zip(losses, replayed.losses, strict=True)):
        findings.losses.append(float(loss))
        deviation = abs(float(loss) - expected) / max(abs(expected), 1e-6)
        findings.note("loss", deviation, f"step {step}")
    for source, parameter in trainer.executor.parameters():
        expected_piece = replayed.pieces.get((source.name, source.box))
        if expected_piece is not None:
            difference = parameter.detach() - expected_piece
            findings.note(
                "parameters", _relative_deviation(difference, expected_piece), source.name
            )
    findings.staleness = replayed.staleness


def _compare_gradients(trainer: Trainer, plain: PlainRun, findings: Findings) -> None:
    """Make the trainer compare all gradients with the reference before each update.

    This replaces the executor's optimizer step, and sets the hook for parameters that are updated in
    slices.
    """
    update = trainer.executor.optimizer_step

    def compare_then_update() -> None:
        gradients, norm = plain.gradients[trainer.steps], plain.norms[trainer.steps]
        for source, parameter in trainer.executor.updated_parameters():
            expected = gradients.get(source.name)
            difference = parameter.grad
            assert difference is not None
            if expected is not None:  # None: the plain module has no gradient, which counts as 0
                difference = difference - _slice_of(expected, source)
            where = f"{source.name}, step {trainer.steps}"
            findings.note("gradients", float(difference.norm()) / (norm or 1.0), where)
        update()

    def compare_slice(source: SlotSource, version: int, gradient: Tensor) -> None:
        """Compare the gradient of one slice, for parameters that are updated slice by slice.

        version: the number of updates of the slice, including this one.
        """
        expected, norm = plain.gradients[version - 1].get(source.name), plain.norms[version - 1]
        slice_difference = gradient if expected is None else gradient - _slice_of(expected, source)
        where = f"{source.name}, step {version - 1}"
        findings.note("gradients", float(slice_difference.norm()) / (norm or 1.0), where)

    trainer.executor.optimizer_step = compare_then_update
    if trainer.executor.parameter_sync is not None:
        trainer.executor.parameter_sync.on_update = compare_slice


def _compare_state(trainer: Trainer, plain: PlainRun, findings: Findings) -> None:
    """Compare the final parameters of this rank, and the parts of buffers that it keeps up to date."""
    executor = trainer.executor
    for source, parameter in executor.parameters():
        difference = parameter.detach() - _slice_of(plain.state[source.name], source)
        findings.note(
            "parameters", _relative_deviation(difference, plain.state[source.name]), source.name
        )
    for source in executor.rank_actions.sources_with_role("buffer"):
        buffer: Tensor = executor.slots[source.slot]
        changes = source.name in trainer.graph.updates  # whether the forward updates the buffer
        expected = _as_float(plain.buffer(trainer.rank, source.name))
        # current_buffers: by buffer, the boxes that this rank keeps up to date.
        for box in (
            executor.rank_actions.current_buffers.get(source.name, []) if changes else [source.box]
        ):
            current = _as_float(buffer[box.slices_within(source.box)])
            difference = current - expected[box.slices_within(Box.full(expected.shape))]
            findings.note("buffers", _relative_deviation(difference, expected), source.name)


def _slice_of(tensor: Tensor, source: SlotSource) -> Tensor:
    """Return the part of a whole parameter that a source stands for."""
    return tensor[source.box.slices_within(Box.full(tensor.shape))]


def _as_float(tensor: Tensor) -> Tensor:
    """Convert integers and booleans to floats, so that a difference can be computed."""
    return tensor if tensor.is_floating_point() or tensor.is_complex() else tensor.double()


def _relative_deviation(difference: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest expected element, or to 1 if that is less."""
    largest = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    return float(difference.abs().max()) / largest if difference.numel() else 0.0
