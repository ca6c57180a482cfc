"""Times plans of several segments on one GPU: each beside plain compiled PyTorch that does the same work.

    python bench/runtime/gpu_plans.py [-o results.json] [--cases accumulate/gpt/bfloat16,...]
    python bench/runtime/gpu_plans.py --tiny          # a trial with tiny models; without a GPU on the CPU

accumulate  gradients of 4 batches are added before an update
pipeline    4 stages on one device, 4 micro-batches, one forward, one backward
split       gradients of weights are computed after those of activations (B and W), beside one backward
zero3       sharded:parameters on one rank, beside FSDP2 on one rank
job         rank 0 of a job of 8 ranks, with its cuts and without peers (no_peers.py), beside an eighth of
            the batch; with all-reduces and with sharded parameters

All sides are compiled and train with SGD. `blocks` is how many different functions raddle has compiled.
gpu.py says how cases and rounds are run.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import gpu_models
import torch
import torch.distributed as dist
from gpu import PRECISIONS, ROUNDS, SECONDS, join_alone, make_side, run_cases
from gpu_timing import Step, measure, place, prepare
from no_peers import NoPeers
from torch import Tensor

import raddle
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.runtime.trainer import Trainer

PARTS, RANKS = 4, 8  # micro-batches, stages or accumulated batches; ranks of the large job
Makers = Mapping[str, Callable[[], Step]]  # side -> makes its step
MODELS = ("resnet50", "gpt", "hf-llama-1b")


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-4)


class Case:
    """A model in a precision. Each kind of case is a method that returns how to make its sides."""

    def __init__(self, model: str, precision: str) -> None:
        self.work, self.precision = gpu_models.load(model), PRECISIONS[precision]
        self.batch = len(self.work.inputs[0])
        self.loss = raddle.supervised(self.work.loss, targets=len(self.work.targets))
        self.trainers: dict[str, Trainer] = {}

    def accumulate(self) -> Makers:
        whole = self.samples(0, self.batch)

        def four_steps() -> Step:
            graph = self.graph(self.batch)
            step = self.raddle("raddle compiled", graph, data_plan(graph), accumulate=PARTS)
            return lambda: [step() for _ in range(PARTS)]

        return {"compiled": lambda: self.plain([whole] * PARTS), "raddle compiled": four_steps}

    def pipeline(self) -> Makers:
        def one_rank() -> Step:
            graph = self.graph(self.batch // PARTS)
            names = [op.name for op in graph.ops]
            ends = [len(names) * k // PARTS for k in range(PARTS + 1)]
            stages = tuple(tuple(names[a:b]) for a, b in pairwise(ends))
            plan = data_plan(
                graph, stages=stages, schedule="interleaved", microbatches=PARTS, batch=self.batch
            )
            return self.raddle("raddle compiled", graph, plan)

        return {"compiled": lambda: self.plain(self.micro_batches()), "raddle compiled": one_rank}

    def split(self) -> Makers:
        def of(side: str, *, split: bool) -> Step:
            graph = self.graph(self.batch)
            return self.raddle(side, graph, data_plan(graph, split_backward=split))

        return {
            "raddle compiled, one backward": lambda: of("one", split=False),
            "raddle compiled, B and W": lambda: of("split", split=True),
        }

    def zero3(self) -> Makers:
        join_alone()

        def one_rank() -> Step:
            graph = self.graph(self.batch)
            return self.raddle(
                "raddle compiled", graph, data_plan(graph, sync="sharded:parameters"),
                transport=NoPeers(1),
            )  # fmt: skip

        return {
            "fsdp2 compiled": lambda: make_side("fsdp2 compiled", self.work, self.precision, "sgd"),
            "raddle compiled": one_rank,
        }

    def job(self) -> Makers:
        def rank_of(sync: str) -> Step:
            graph = self.graph(self.batch)
            plan = data_plan(graph, RANKS, sync=sync)
            return self.raddle(f"raddle compiled, {sync}", graph, plan, transport=NoPeers(RANKS))

        return {
            "compiled": lambda: self.plain([self.samples(0, self.batch // RANKS)]),
            "raddle compiled, allreduce": lambda: rank_of("allreduce"),
            "raddle compiled, sharded:parameters": lambda: rank_of("sharded:parameters"),
        }

    # -- the sides -----------------------------------------------------------------------------------------

    def raddle(self, side: str, graph: Graph, plan: Plan, **more: Any) -> Step:
        """Return a step of raddle, compiled. side: under which its trainer is kept."""
        trainer = raddle.parallelize(
            copy.deepcopy(self.work.model).cpu(), sgd, plan=replace(plan, precision=self.precision),
            graph=graph, loss=self.loss, device=place(), compile=True, **more,
        )  # fmt: skip
        self.trainers[side] = trainer
        batch = tuple(self.samples(0, self.batch))
        return lambda: trainer.step(batch)

    def plain(self, parts: Sequence[Sequence[Tensor]]) -> Step:
        """Return a step of compiled PyTorch: a backward for each of these batches, then an update."""
        model, loss, count = copy.deepcopy(self.work.model), self.work.loss, len(self.work.inputs)
        optimizer = sgd(model.parameters())

        def forward(*batch: Any) -> Any:
            return loss(model(*batch[:count]), *batch[count:]) / len(parts)

        run = torch.compile(forward, dynamic=False)

        def step() -> None:
            optimizer.zero_grad()
            for part in parts:
                with torch.autocast(
                    place(), dtype=torch.bfloat16, enabled=self.precision == "bf16"
                ):
                    value = run(*part)
                value.backward()
            optimizer.step()

        return step

    def graph(self, samples: int) -> Graph:
        """Return the graph of the model for the first samples of the batch."""
        example = tuple(t.cpu() for t in self.samples(0, samples))
        return raddle.capture(copy.deepcopy(self.work.model).cpu(), example, self.loss)

    def samples(self, first: int, end: int) -> list[Tensor]:
        """Return these samples of the batch."""
        return [t[first:end] for t in (*self.work.inputs, *self.work.targets)]

    def micro_batches(self) -> list[list[Tensor]]:
        size = self.batch // PARTS
        return [self.samples(k * size, (k + 1) * size) for k in range(PARTS)]


def data_plan(graph: Graph, ranks: int = 1, **more: Any) -> Plan:
    """Return data parallelism, with local batch statistics as plain PyTorch has them."""
    plan = raddle.plan(graph, cluster=f"local:{ranks}", method="data", sync="allreduce").plan
    return replace(plan, **{"bn": "local", **more})


KINDS: dict[str, Callable[[Case], Makers]] = {
    "accumulate": Case.accumulate, "pipeline": Case.pipeline, "split": Case.split, "zero3": Case.zero3,
    "job": Case.job,
}  # fmt: skip


def run_worker(name: str, rounds: int) -> None:
    """Measure one case in this process, and print the row as a line of JSON."""
    kind, model, precision = name.split("/")
    case = Case(model, precision)
    prepared = prepare(KINDS[kind](case))
    print("READY", file=sys.stderr, flush=True)
    sys.stdin.readline()
    row = {"case": kind, "model": model, "precision": precision, **measure(prepared, rounds)}
    row["blocks"] = {side: t.setup.functions.compiled for side, t in case.trainers.items()}
    print(json.dumps(row), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", default="")
    parser.add_argument("--worker", default="")
    parser.add_argument("--cases", default="")
    parser.add_argument(
        "--tiny", action="store_true", help="a tiny model and few rounds, as a trial"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    rounds = 2 if options.tiny else options.rounds
    if options.worker:
        run_worker(options.worker, rounds)
        return
    models = ("gpt-tiny",) if options.tiny else MODELS
    every = [f"{kind}/{m}/{p}" for m in models for p in ("bfloat16", "float32") for kind in KINDS]
    if options.tiny:
        every = every[: len(KINDS)]
    cases = options.cases.split(",") if options.cases else every
    run_cases(__file__, cases, ["--rounds", str(rounds)], options.output, options.seconds)


if __name__ == "__main__":
    main()
