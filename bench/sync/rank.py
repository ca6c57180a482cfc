"""Times sync kinds and DistributedDataParallel on one rank in the lab, blocks in turn.

A block is some steps of one kind, without a barrier inside, so that steps may overlap as they do in
training. Three more times are measured: compute alone, compute with traffic on the link, and communication
alone. run.py starts a rank on each emulated host, with a request as JSON: its keys are in `run.at_rate`.
"""

from __future__ import annotations

import copy
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))  # the experiments

from models import task
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import raddle
from experiments.links import background_traffic, lab_cluster, measure_link
from experiments.timing_rank import sgd
from raddle.costs.profile import Profile, measure
from raddle.graph.capture import capture
from raddle.graph.gradients import active_values
from raddle.plans.plan import Plan
from raddle.runtime.trainer import Trainer
from raddle.searches.choose_sync import host_seconds, with_fastest_sync
from raddle.searches.planning import plan_for
from raddle.searches.predict import simulate_steps


def main(request: dict[str, Any]) -> None:
    """Measure what the request asks for; rank 0 writes the result as JSON to the file request["out"]."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    result = Bench(request).run()
    if dist.get_rank() == 0:
        pathlib.Path(request["out"]).write_text(json.dumps(result))
    dist.destroy_process_group()


class Bench:
    """The measurements of this rank."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.task = task(request["model"], request["batch"])
        self.graph = capture(
            self.task.model, self.task.batch, self.task.loss, name=request["model"]
        )
        self.trainers: dict[str, Trainer] = {}
        # The choice of `auto`: sync kind and bytes of a bucket.
        self.chosen: tuple[str, int] | None = None

    def run(self) -> dict[str, Any]:
        """Measure everything; return medians and ranges in seconds, the link and the profile."""
        link = measure_link(self.rank, self.size)
        plain = self._plain(copy.deepcopy(self.task.model))
        plain()
        self.profile = self._profile(self._rate([self._block(plain, None)], link))
        self.on = lab_cluster(self.size, **link)
        steps = {kind: self._step(kind) for kind in self.request["kinds"]}
        steps["compute"] = plain
        times: dict[str, list[float]] = {name: [] for name in (*steps, "compute beside traffic")}
        if "p3" in steps:
            times["communication"] = []
        for turn in range(1 + self.request["rounds"]):  # the first warms up
            for name, step in steps.items():
                self._note(times, name, turn, self._block(step, self.trainers.get(name)))
            with background_traffic(
                self.rank, self.size, self._rate(times["compute"] or [1.0], link)
            ):
                seconds = self._block(steps["compute"], None)
            self._note(times, "compute beside traffic", turn, seconds)
            if "p3" in steps:
                self._note(times, "communication", turn, self._talk(self.trainers["p3"]))
        result = {
            "seconds": {
                name: statistics.median(seconds_of_blocks)
                for name, seconds_of_blocks in times.items()
            },
            "spread": {
                name: [min(seconds_of_blocks), max(seconds_of_blocks)]
                for name, seconds_of_blocks in times.items()
            },
            "link": link,
            "loads": {kind: loads_of(t) for kind, t in self.trainers.items()},
            "profile": self.profile,
            "auto": self.chosen,
            "overtaken": self._overtaken(),
        }
        dist.barrier()
        for trainer in self.trainers.values():
            trainer.close()
        return result

    def _note(self, times: dict[str, list[float]], name: str, turn: int, seconds: float) -> None:
        """Records the slowest rank's seconds; turn 0 is warm-up."""
        slowest = torch.tensor(seconds)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if turn:
            times[name].append(float(slowest))

    def _block(self, step: Callable[[], None], trainer: Trainer | None) -> float:
        """Return the average seconds of a step in a block; trainer: None if raddle does not run it."""
        count = self.request["steps"]
        if trainer is not None:
            trainer.synchronize()
        step()  # not timed: no earlier step's communication delays it
        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            step()
        if trainer is not None and trainer.plan.sync.startswith("p3"):
            # The communication of the last step would overlap with a next step, so it is not timed.
            ended = time.perf_counter()
            trainer.synchronize()
            return (ended - start) / count
        return (time.perf_counter() - start) / count

    def _step(self, kind: str) -> Callable[[], None]:
        """Return the training step of a sync kind, or of "ddp"."""
        model = copy.deepcopy(self.task.model)
        if kind == "ddp":
            return self._plain(DistributedDataParallel(model))
        plan = self._plan(kind)
        trainer = raddle.parallelize(
            model,
            sgd,
            plan=plan,
            loss=self.task.loss,
            graph=self.graph,
            device="cpu",
        )
        self.trainers[kind] = trainer
        part = trainer.part(self.task.batch)
        return lambda: void(trainer.step(part))

    def _plan(self, sync: str) -> Plan:
        """Return the plan for a sync kind; for "auto", rank 0 chooses the fastest kind by simulation."""
        on = lab_cluster(self.size, self.request["bytes_per_s"])
        if sync == "auto":
            plan = self._plan("allreduce")
            choice: list[Any] = [None]
            if self.rank == 0:
                best = with_fastest_sync(plan, self.on, self._seconds)
                choice = [(best.sync, best.bucket)]
            dist.broadcast_object_list(choice)
            self.chosen = choice[0]
            return replace(plan, sync=choice[0][0], bucket=choice[0][1])
        return plan_for(
            self.graph, on, self.request["method"], bn="local", sync=sync, optimizer="momentum"
        )

    def _seconds(self, plan: Plan) -> float:
        """Return the predicted seconds of a step, with the measured profile and link."""
        timeline = simulate_steps(self.graph, plan, self.on, Profile(self.profile))
        return timeline.step_seconds + host_seconds(timeline)

    def _plain(self, module: nn.Module) -> Callable[[], None]:
        """Return a plain PyTorch training step on this rank's part of the batch."""
        optimizer = sgd(module.parameters())
        part = [t.chunk(self.size)[self.rank] for t in self.task.batch]

        def step() -> None:
            optimizer.zero_grad()
            loss = self.task.loss(module, part)
            loss.backward()
            optimizer.step()
            float(loss.detach())

        return step

    def _talk(self, trainer: Trainer) -> float:
        """Return the seconds to send all gradients and receive all parameters, without computing."""
        parameter_sync = trainer.executor.parameter_sync
        assert parameter_sync is not None
        parameters = trainer.executor.parameters()  # pairs (source with its slot, tensor)
        zeros = [(source.slot, torch.zeros_like(tensor)) for source, tensor in parameters]
        dist.barrier()
        start = time.perf_counter()
        parameter_sync.begin_step()
        for slot, gradient in zeros:
            parameter_sync.submit(slot, gradient)
        parameter_sync.synchronize()
        return time.perf_counter() - start

    def _overtaken(self) -> int:
        """Return how many messages more urgent ones have overtaken with P3."""
        if "p3" not in self.trainers:
            return 0
        return int(self.trainers["p3"].transport.wire().counters.overtaken)

    def _rate(self, compute: list[float], link: dict[str, float]) -> float:
        """Return the average bytes/s that data parallelism sends during a step; compute: its seconds."""
        weights = sum(p.nbytes for p in self.task.model.parameters())
        sent = 2 * (self.size - 1) / self.size * weights
        return sent / max(statistics.median(compute), sent / link["bandwidth"])

    def _profile(self, rate: float) -> dict[str, float]:
        """Return the seconds of a rank's operators, on all ranks at once, next to a step's traffic."""
        plan = self._plan("allreduce")
        active = active_values(self.graph)
        # By operator: the numbers of the inputs that need gradients.
        gradient_inputs = {
            op.name: [i for i, name in enumerate(op.inputs) if name in active]
            for op in self.graph.ops
        }
        boxes = [(op, tile.box) for op in self.graph.ops for tile in plan.tiles[op.name].tiles]
        with background_traffic(self.rank, self.size, rate):
            return measure(self.graph, boxes, gradient_inputs, "core", repeats=9).seconds


def loads_of(trainer: Trainer) -> float:
    """Return the elements of the busiest server divided by the average over the servers."""
    elements = [0] * trainer.plan.devices
    for slices in trainer.program.slices.values():
        for parameter_slice in slices:
            elements[parameter_slice.server] += parameter_slice.box.volume
    return max(elements) * len(elements) / sum(elements) if any(elements) else 1.0


def void(_: object) -> None:
    """Drop a value, so that a lambda returns None."""


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
