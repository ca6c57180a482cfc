"""Trains by a plan, plain torch, DDP or raddle.sync servers, all with one interface (TrainingRun)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import raddle
from experiments.thesis.training_task import BATCH, build_network, digits, sgd
from raddle import sync
from raddle.api.plans import is_asynchronous
from raddle.api.running import UpdateEvent

Batches = Sequence[tuple[Tensor, Tensor]]  # images and labels
PLAIN, DDP, SERVERS = "plain", "ddp", "servers:"  # other kinds are files of plans


class TrainingRun(Protocol):
    """A training from the start, by any of the ways."""

    def train(self, batches: Batches) -> None:
        """Trains one step on each batch; at the end all parameters are up to date."""

    def evaluate(self, images: Tensor, labels: Tensor) -> tuple[float, float]:
        """Returns the loss, and the accuracy (0 to 1)."""

    def staleness(self) -> Sequence[int]:
        """Returns, for each use of weights, how many updates they lacked; empty if synchronous."""

    def close(self) -> None:
        """Ends the run and its connections."""


def start_run(kind: str, width: int, seed: int) -> TrainingRun:
    """Starts a run. kind: `plain`, `ddp`, `servers:` + a sync kind of raddle.sync, or a plan file."""
    model = build_network(width, seed)
    if kind == PLAIN:
        return ReplicatedRun(model, model, sgd(list(model.parameters())))
    if kind == DDP:
        return ReplicatedRun(model, DistributedDataParallel(model), sgd(list(model.parameters())))
    if kind.startswith(SERVERS):
        wrapped = sync.Optimizer(
            sgd(list(model.parameters())), model, sync=kind.removeprefix(SERVERS)
        )
        return ReplicatedRun(model, model, wrapped)
    return PlanRun(model, kind)


class PlanRun:
    """Training by a plan, with `raddle.parallelize`."""

    def __init__(self, model: nn.Module, plan: str) -> None:
        images, labels = digits()
        example = images[:BATCH], labels[:BATCH]
        self.trainer = raddle.parallelize(
            model,
            sgd,
            plan=plan,
            loss=raddle.supervised(F.cross_entropy),
            example=example,
            device="cpu",
        )
        if is_asynchronous(self.trainer.plan):
            self.trainer.step_runner.weight_uses = []  # a list makes the trainer log into it

    def train(self, batches: Batches) -> None:
        """Trains one step on each batch; at the end all parameters are up to date."""
        self.trainer.train(batches)
        self.trainer.synchronize()

    def evaluate(self, images: Tensor, labels: Tensor) -> tuple[float, float]:
        """Returns the loss, and the accuracy (0 to 1)."""
        loss, scores = self.trainer.evaluate((images, labels)).loss, self.trainer.predict(images)
        return float(loss), _share_right(scores, labels)

    def staleness(self) -> Sequence[int]:
        """Returns, for each forward (phase "F") that uses a weight, its step minus the weight's version.

        The version is the number of updates that the weight has had.
        """
        return [
            used.step - used.version
            for used in self.trainer.step_runner.weight_uses or ()
            if used.phase == "F"
        ]

    def close(self) -> None:
        """Ends the trainer."""
        self.trainer.close()


class ReplicatedRun:
    """Every rank has the whole model, and a part of each batch.

    forward_module: what computes the forward, the model itself or DDP around it. optimizer: of torch, or
    raddle.sync.Optimizer, which also synchronises; its `log` has the updates at the servers.
    """

    def __init__(self, model: nn.Module, forward_module: nn.Module, optimizer: Any) -> None:
        self.model, self.forward_module, self.optimizer = model, forward_module, optimizer

    def train(self, batches: Batches) -> None:
        """Trains one step on this rank's part of each batch."""
        rank, size = dist.get_rank(), dist.get_world_size()
        for images, labels in batches:
            parts = (tensor.tensor_split(size)[rank] for tensor in (images, labels))
            loss = F.cross_entropy(self.forward_module(next(parts)), next(parts))
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad()
        self._synchronize()

    def evaluate(self, images: Tensor, labels: Tensor) -> tuple[float, float]:
        """Returns the loss and the accuracy (0 to 1) of rank 0's copy, on all ranks.

        With asynchronous servers the copies of other ranks may differ a little.
        """
        result = torch.zeros(2, dtype=torch.float64)
        if dist.get_rank() == 0:
            with torch.no_grad():
                scores = self.model(images)
                result[0], result[1] = F.cross_entropy(scores, labels), _share_right(scores, labels)
        dist.broadcast(result, 0)
        return float(result[0]), float(result[1])

    def staleness(self) -> Sequence[int]:
        """Returns the staleness of each update at a server; empty without servers."""
        return (
            updates_between(self.optimizer.log)
            if isinstance(self.optimizer, sync.Optimizer)
            else ()
        )

    def close(self) -> None:
        """Ends the connections to servers, if there are any."""
        if isinstance(self.optimizer, sync.Optimizer):
            self.optimizer.close()

    def _synchronize(self) -> None:
        """Waits until this rank has all updates from servers, if there are any."""
        if isinstance(self.optimizer, sync.Optimizer):
            self.optimizer.synchronize()


def updates_between(log: Sequence[UpdateEvent]) -> list[int]:
    """Returns, for each update at a server, how many other workers' updates came since this worker's last.

    Counted for each item (a slice of a parameter, sync/item.py). event.version: how many updates the item
    has had, including this one.
    """
    # For each item and worker: the version after the worker's last update
    last: dict[tuple[int, int], int] = {}
    result = []
    for event in log:
        if event.worker >= 0:  # -1: an update with the sum over all workers, so nothing is stale
            item_and_worker = (event.item, event.worker)
            result.append(event.version - last.get(item_and_worker, 0) - 1)
            last[item_and_worker] = event.version
    return result


def _share_right(scores: Tensor, labels: Tensor) -> float:
    """Returns the share of images (0 to 1) whose class is predicted right."""
    return float((scores.argmax(1) == labels).double().mean())
