"""Repeats a training run with overlapping steps serially, with the plain module, as its reference.

In an asynchronous pipeline, a step may use weights that lack the updates of earlier steps. The ranks log
which version of each piece of a parameter a step used, and which version each update made. The replay runs
a step as soon as all versions that it used exist, and applies the updates in the logged order.
"""

# v: version, the number of updates that a piece has had; p: a piece; s: a step; m: a micro-batch

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from raddle.graph.box import Box
from raddle.runtime.job import Job, optimizer_for
from raddle.verification.plain_training import (
    backward,
    batch_of_step,
    micro_batch_loss,
    micro_batches,
)

Piece = tuple[str, Box]  # name of a parameter, and the box of its elements


class VersionRecord(NamedTuple):
    """An entry of the log: a step used a version of a piece, or made it by an update."""

    piece: Piece
    phase: str  # "F": the version was used in a forward; "U": an update made the version
    step: int
    micro_batch: int  # 0 for an update
    version: int  # number of updates that the piece has had


class ReplayResult(NamedTuple):
    """The results of a serial replay."""

    losses: list[float]  # by step
    pieces: dict[Piece, Tensor]  # final values
    staleness: dict[str, tuple[int, int]]  # by parameter: least and most updates that a step missed


def replay(job: Job, log: Iterable[VersionRecord], steps: int, seed: int) -> ReplayResult:
    """Train a copy of the module step by step, each step with the logged versions of the weights.

    Returns its losses, final pieces of parameters, and staleness. seed: the seed of the dropout masks.
    """
    return _Replayer(job, list(log), steps, seed).run()


class _Replayer:
    """The state of a replay: versions, gradients and losses so far."""

    def __init__(self, job: Job, log: list[VersionRecord], steps: int, seed: int) -> None:
        self.job, self.steps, self.seed = job, steps, seed
        self.model = copy.deepcopy(job.workload.model)
        self.parameters = dict(self.model.named_parameters())
        # [step][micro-batch, piece]: the version that was used.
        self.used: dict[int, dict[tuple[int, Piece], int]] = {s: {} for s in range(steps)}
        step_by_version: dict[Piece, dict[int, int]] = {}  # [piece][version]: the step that made it
        for record in log:
            if record.phase == "F":
                self.used[record.step][record.micro_batch, record.piece] = record.version
                step_by_version.setdefault(record.piece, {})
            else:
                step_by_version.setdefault(record.piece, {})[record.version] = record.step
        # For each piece, the steps in the order of their updates.
        self.update_order = {
            piece: [steps_of_piece[v] for v in sorted(steps_of_piece)]
            for piece, steps_of_piece in step_by_version.items()
        }
        # [piece][version]: the value of the piece, for all versions so far.
        self.history = {p: [self._initial_value(p)] for p in self.update_order}
        make_optimizer = optimizer_for(job.plan.optimizer)
        # For each piece, its newest version, and an optimizer that updates only this piece.
        self.weights = {
            p: nn.Parameter(versions[0].clone()) for p, versions in self.history.items()
        }
        self.optimizers = {p: make_optimizer([w]) for p, w in self.weights.items()}
        self.gradients: dict[int, dict[str, Tensor]] = {}  # [step][parameter name]
        self.losses: dict[int, float] = {}  # by step

    def _initial_value(self, piece: Piece) -> Tensor:
        """Return the value of a piece before the first update."""
        name, box = piece
        whole = self.parameters[name].detach()
        return whole[box.slices_within(Box.full(whole.shape))].clone()

    def run(self) -> ReplayResult:
        """Run all steps, each as soon as the versions that it used exist, and return the results."""
        remaining = list(range(self.steps))
        while remaining:
            ready = next((s for s in remaining if self._is_ready(s)), None)
            assert ready is not None, f"steps {remaining} use versions that no step made"
            self._step(ready)
            remaining.remove(ready)
            self._apply_updates()
        losses = [self.losses[s] for s in range(self.steps)]
        return ReplayResult(
            losses, {p: versions[-1] for p, versions in self.history.items()}, self._staleness()
        )

    def _is_ready(self, step: int) -> bool:
        """Return whether all versions that a step used exist already."""
        return all(v < len(self.history[p]) for (_, p), v in self.used[step].items())

    def _step(self, step: int) -> None:
        """Run forward and backward of a step with the versions that it used."""
        gradients: dict[str, Tensor] = {}
        total = 0.0
        for micro_batch, batch in enumerate(micro_batches(self.job, batch_of_step(self.job, step))):
            for (m, (name, box)), v in self.used[step].items():
                if m == micro_batch:
                    whole = self.parameters[name].data
                    whole[box.slices_within(Box.full(whole.shape))] = self.history[name, box][v]
            self.model.zero_grad()
            loss = micro_batch_loss(self.job, self.model, batch, self.seed, step, micro_batch)
            backward(loss)
            total += loss.item()
            for name, parameter in self.parameters.items():
                if parameter.grad is not None:
                    gradients[name] = gradients.get(name, 0) + parameter.grad.clone()
        self.gradients[step], self.losses[step] = gradients, total

    def _apply_updates(self) -> None:
        """Apply, for each piece, the next updates in the logged order whose gradients exist."""
        for piece, steps in self.update_order.items():
            versions = self.history[piece]  # version v is made by the update of steps[v - 1]
            while len(versions) <= len(steps) and steps[len(versions) - 1] in self.gradients:
                name, box = piece
                gradient = self.gradients[steps[len(versions) - 1]].get(name)
                weight = self.weights[piece]
                if gradient is None:
                    gradient = torch.zeros_like(self.parameters[name])
                weight.grad = gradient[box.slices_within(Box.full(gradient.shape))].clone()
                self.optimizers[piece].step()
                versions.append(weight.detach().clone())

    def _staleness(self) -> dict[str, tuple[int, int]]:
        """Return for each parameter the least and the most earlier updates that a step did not use."""
        missed: dict[str, list[int]] = {}
        for step, used in self.used.items():
            for (_, (name, _)), v in used.items():
                # Before step s there are s updates, of steps 0 to s - 1; v of them were used.
                missed.setdefault(name, []).append(step - v)
        return {name: (min(counts), max(counts)) for name, counts in missed.items()}
