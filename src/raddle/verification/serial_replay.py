"""Training whose steps overlapped, done again serially by the plain module with the weights that were used.

Every piece of a parameter has a history of versions. The log says which version a step used, and in which
order steps updated it; so a step can be done again as soon as all of its versions are known.
"""

# v: version, the number of updates that a piece has had

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

Piece = tuple[str, Box]  # a parameter's name, and the box of it


class VersionRecord(NamedTuple):
    """That a step used a version of a piece ("F"), or made one ("U")."""

    piece: Piece
    phase: str
    step: int
    micro_batch: int
    version: int


class ReplayResult(NamedTuple):
    """What a serial replay gives: losses by step, pieces of parameters, and how stale their uses were."""

    losses: list[float]
    pieces: dict[Piece, Tensor]
    staleness: dict[str, tuple[int, int]]  # by parameter: least and most updates that a step missed


def replay(job: Job, log: Iterable[VersionRecord], steps: int, seed: int) -> ReplayResult:
    """Trains a copy of the module step by step, each with the versions that the log gives it."""
    return _Replayer(job, list(log), steps, seed).run()


class _Replayer:
    def __init__(self, job: Job, log: list[VersionRecord], steps: int, seed: int) -> None:
        self.job, self.steps, self.seed = job, steps, seed
        self.model = copy.deepcopy(job.workload.model)
        self.parameters = dict(self.model.named_parameters())
        self.used: dict[int, dict[tuple[int, Piece], int]] = {s: {} for s in range(steps)}
        step_by_version: dict[Piece, dict[int, int]] = {}  # by version, the step that made it
        for record in log:
            if record.phase == "F":
                self.used[record.step][record.micro_batch, record.piece] = record.version
                step_by_version.setdefault(record.piece, {})
            else:
                step_by_version.setdefault(record.piece, {})[record.version] = record.step
        self.update_order = {
            piece: [steps_of_piece[v] for v in sorted(steps_of_piece)]
            for piece, steps_of_piece in step_by_version.items()
        }
        self.history = {p: [self._initial_value(p)] for p in self.update_order}
        make = optimizer_for(job.plan.optimizer)
        self.weights = {
            p: nn.Parameter(versions[0].clone()) for p, versions in self.history.items()
        }
        self.optimizers = {p: make([w]) for p, w in self.weights.items()}
        self.gradients: dict[int, dict[str, Tensor]] = {}
        self.losses: dict[int, float] = {}

    def _initial_value(self, piece: Piece) -> Tensor:
        name, box = piece
        whole = self.parameters[name].detach()
        return whole[box.slices_within(Box.full(whole.shape))].clone()

    def run(self) -> ReplayResult:
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
        return all(v < len(self.history[p]) for (_, p), v in self.used[step].items())

    def _step(self, step: int) -> None:
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
            for name, p in self.parameters.items():
                if p.grad is not None:
                    gradients[name] = gradients.get(name, 0) + p.grad.clone()
        self.gradients[step], self.losses[step] = gradients, total

    def _apply_updates(self) -> None:
        """All updates whose turn it is."""
        for piece, steps in self.update_order.items():
            versions = self.history[piece]
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
        """Updates of earlier steps that a step did not see."""
        missed: dict[str, list[int]] = {}
        for step, used in self.used.items():
            for (_, (name, _)), v in used.items():
                missed.setdefault(name, []).append(step - v)
        return {name: (min(counts), max(counts)) for name, counts in missed.items()}
