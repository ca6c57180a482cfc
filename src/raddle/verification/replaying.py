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
from raddle.verification.plain import backward, batch_of_step, micro_batches, micro_loss

Piece = tuple[str, Box]  # a parameter's name, and the box of it


class Line(NamedTuple):
    """That a step used a version of a piece ("F"), or made one ("U")."""

    piece: Piece
    phase: str
    step: int
    micro: int
    version: int


class Replayed(NamedTuple):
    """What a serial replay gives: losses by step, pieces of parameters, and how stale their uses were."""

    losses: list[float]
    pieces: dict[Piece, Tensor]
    staleness: dict[str, tuple[int, int]]  # by parameter: least and most updates that a step missed


def replay(job: Job, log: Iterable[Line], steps: int, seed: int) -> Replayed:
    """Trains a copy of the module step by step, each with the versions that the log gives it."""
    return _Replay(job, list(log), steps, seed).run()


class _Replay:
    def __init__(self, job: Job, log: list[Line], steps: int, seed: int) -> None:
        self.job, self.steps, self.seed = job, steps, seed
        self.model = copy.deepcopy(job.workload.model)
        self.parameters = dict(self.model.named_parameters())
        self.used: dict[int, dict[tuple[int, Piece], int]] = {s: {} for s in range(steps)}
        made: dict[Piece, dict[int, int]] = {}  # by version, the step that made it
        for line in log:
            if line.phase == "F":
                self.used[line.step][line.micro, line.piece] = line.version
                made.setdefault(line.piece, {})
            else:
                made.setdefault(line.piece, {})[line.version] = line.step
        self.order = {piece: [own[v] for v in sorted(own)] for piece, own in made.items()}
        self.history = {p: [self._start(p)] for p in self.order}
        make = optimizer_for(job.plan.optimizer)
        self.weights = {p: nn.Parameter(own[0].clone()) for p, own in self.history.items()}
        self.optimizers = {p: make([w]) for p, w in self.weights.items()}
        self.gradients: dict[int, dict[str, Tensor]] = {}
        self.losses: dict[int, float] = {}

    def _start(self, piece: Piece) -> Tensor:
        name, box = piece
        whole = self.parameters[name].detach()
        return whole[box.slices_within(Box.full(whole.shape))].clone()

    def run(self) -> Replayed:
        left = list(range(self.steps))
        while left:
            ready = next((s for s in left if self._is_ready(s)), None)
            assert ready is not None, f"steps {left} use versions that no step made"
            self._step(ready)
            left.remove(ready)
            self._update()
        losses = [self.losses[s] for s in range(self.steps)]
        return Replayed(losses, {p: own[-1] for p, own in self.history.items()}, self._staleness())

    def _is_ready(self, step: int) -> bool:
        return all(v < len(self.history[p]) for (_, p), v in self.used[step].items())

    def _step(self, step: int) -> None:
        gradients: dict[str, Tensor] = {}
        total = 0.0
        for micro, batch in enumerate(micro_batches(self.job, batch_of_step(self.job, step))):
            for (m, (name, box)), v in self.used[step].items():
                if m == micro:
                    whole = self.parameters[name].data
                    whole[box.slices_within(Box.full(whole.shape))] = self.history[name, box][v]
            self.model.zero_grad()
            value = micro_loss(self.job, self.model, batch, self.seed, step, micro)
            backward(value)
            total += value.item()
            for name, p in self.parameters.items():
                if p.grad is not None:
                    gradients[name] = gradients.get(name, 0) + p.grad.clone()
        self.gradients[step], self.losses[step] = gradients, total

    def _update(self) -> None:
        """All updates whose turn it is."""
        for piece, steps in self.order.items():
            own = self.history[piece]
            while len(own) <= len(steps) and steps[len(own) - 1] in self.gradients:
                name, box = piece
                found = self.gradients[steps[len(own) - 1]].get(name)
                weight = self.weights[piece]
                if found is None:
                    found = torch.zeros_like(self.parameters[name])
                weight.grad = found[box.slices_within(Box.full(found.shape))].clone()
                self.optimizers[piece].step()
                own.append(weight.detach().clone())

    def _staleness(self) -> dict[str, tuple[int, int]]:
        """Updates of earlier steps that a step did not see."""
        found: dict[str, list[int]] = {}
        for step, used in self.used.items():
            for (_, (name, _)), v in used.items():
                found.setdefault(name, []).append(step - v)
        return {name: (min(own), max(own)) for name, own in found.items()}
