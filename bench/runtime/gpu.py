"""Times one rank on a GPU: a step of raddle beside PyTorch's, eager and compiled, beside DDP and FSDP2.

    python bench/runtime/gpu.py [-o results.json] [--cases resnet50/bfloat16/sgd,...] [--sides eager,raddle]
    python bench/runtime/gpu.py --tiny          # a trial with tiny models, on the CPU if there is no GPU

A side is one way to train, such as "raddle" or "ddp compiled" (SIDES). Each case (model, precision,
optimizer) has a process, which makes all sides and runs them until they are compiled. Then the processes
measure one after the other, so that nothing else runs. In a process the sides take turns
(gpu_timing.py). What is not measured after `--seconds` is in `not_run` of the results.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import gpu_models
import torch
import torch.distributed as dist
from gpu_timing import Step, measure, place, prepare
from torch import nn

import raddle
from raddle.plans.notation import read_tiles
from raddle.plans.plan import Plan

SIDES = ("eager", "compiled", "raddle", "raddle compiled", "ddp compiled", "fsdp2 compiled")
OPTIMIZERS = ("sgd", "adamw")
PRECISIONS = {"float32": "float32", "bfloat16": "bf16"}  # name -> precision of a plan
ROUNDS, SECONDS = 10, 540
TINY_CASES = ("mlp-tiny/float32/sgd", "gpt-tiny/bfloat16/adamw")


def make_optimizer(name: str) -> Callable[[Any], torch.optim.Optimizer]:
    """Return a function that makes the optimizer "adamw" or "sgd" for given parameters."""
    if name == "adamw":
        return lambda p: torch.optim.AdamW(p, lr=1e-4, weight_decay=0.01)
    return lambda p: torch.optim.SGD(p, lr=1e-4)


def plain_step(
    work: gpu_models.Work,
    forward: Callable[..., Any],
    optimizer: torch.optim.Optimizer,
    precision: str,
) -> Step:
    """Return a step as people write it: forward and loss under autocast, backward, update."""

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(place(), dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = forward(*work.inputs, *work.targets)
        loss.backward()
        optimizer.step()

    return step


def make_side(side: str, work: gpu_models.Work, precision: str, optimizer: str) -> Step:
    """Return the step of one side, with a copy of the model.

    raddle copies parameters and leaves the module's own as they are, so its module stays on the CPU.
    """
    model, make = copy.deepcopy(work.model), make_optimizer(optimizer)
    if side.startswith("raddle"):
        model = model.cpu()
        inputs, targets = ([t.cpu() for t in tensors] for tensors in (work.inputs, work.targets))
        graph = raddle.capture(
            model, (*inputs, *targets), raddle.supervised(work.loss, targets=len(targets))
        )
        tiles = read_tiles(graph, "".join(f"{op.name}: @0\n" for op in graph.ops))
        trainer = raddle.parallelize(
            model,
            make,
            plan=Plan(tiles, devices=1, bn="local", optimizer=optimizer),
            graph=graph,
            loss=raddle.supervised(work.loss, targets=len(targets)),
            device=place(),
            precision=precision,
            compile=side == "raddle compiled",
        )
        return lambda: trainer.step((*work.inputs, *work.targets))
    if side.startswith("ddp"):
        model = nn.parallel.DistributedDataParallel(
            model, device_ids=[0] if place() == "cuda" else None
        )
    elif side.startswith("fsdp2"):
        shard(model)
    count = len(work.inputs)

    def forward(*batch: Any) -> Any:
        return work.loss(model(*batch[:count]), *batch[count:])

    compiled = side.endswith("compiled")
    # torch.compile keeps what it compiled by code object: with one for all sides, calls would look through
    # the results of the other sides.
    its_own = FunctionType(
        forward.__code__.replace(), forward.__globals__, closure=forward.__closure__
    )
    run = torch.compile(its_own, dynamic=False) if compiled else forward
    return plain_step(work, run, make(model.parameters()), precision)


def shard(model: nn.Module) -> None:
    """Apply FSDP2 as its documentation does: to every member of a ModuleList, then to the model."""
    from torch.distributed.fsdp import fully_shard

    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList):
            for block in module:
                fully_shard(block)
    fully_shard(model)


def run_worker(case: str, sides: Sequence[str], rounds: int) -> None:
    """Measure one case in this process, and print the row as a line of JSON.

    After everything is compiled, wait for a line on stdin, so that other processes do not disturb.
    """
    name, precision, optimizer = case.split("/")
    if any(side.startswith(("ddp", "fsdp2")) for side in sides):
        join_alone()
    work, plan_precision = gpu_models.load(name), PRECISIONS[precision]
    prepared = prepare(
        {side: lambda side=side: make_side(side, work, plan_precision, optimizer) for side in sides}
    )
    print("READY", file=sys.stderr, flush=True)
    sys.stdin.readline()
    row = {"model": name, "precision": precision, "optimizer": optimizer}
    print(json.dumps({**row, **measure(prepared, rounds)}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def join_alone() -> None:
    """Make the process group of a job with one rank."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ["MASTER_PORT"] = str(20000 + os.getpid() % 20000)
    if place() == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if place() == "cuda" else "gloo")


def run_cases(
    script: str, cases: Sequence[str], arguments: Sequence[str], output: str, seconds: float
) -> None:
    """Start a process for each case; when all have compiled, let them measure one after the other.

    script: its option --worker measures one case. arguments: of every process. output: a file for the
    results. seconds: after which no further case begins to measure.
    """
    began = time.perf_counter()
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    workers = [
        (case, subprocess.Popen(
            [sys.executable, script, "--worker", case, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment,
        ))
        for case in cases
    ]  # fmt: skip
    for case, process in workers:
        log = []
        for line in process.stderr or ():
            log.append(line)
            if line.startswith("READY"):
                break
        else:
            print(f"{case}: {''.join(log[-12:])}", flush=True)
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    results, not_run = [], list[str]()
    for case, process in workers:
        if time.perf_counter() - began > seconds:
            process.kill()
            process.communicate()
            not_run.append(case)
            continue
        out, errors = process.communicate("go\n")
        row = next((line for line in out.splitlines() if line.startswith("{")), "")
        print(row or f"{case}: {errors[-600:]}", flush=True)
        results += [{**json.loads(row), "card": card}] if row else []
        not_run += [] if row else [case]
    if not_run:
        print(f"not run: {', '.join(not_run)}", flush=True)
    if output:
        with open(output, "w", encoding="utf-8") as file:
            content = {"torch": torch.__version__, "results": results, "not_run": not_run}
            json.dump(content, file, indent=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", default="")
    parser.add_argument("--worker", default="")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--cases", default="")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny models and few rounds, as a trial"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    rounds = 2 if options.tiny else options.rounds
    if options.worker:
        run_worker(options.worker, options.sides.split(","), rounds)
        return
    every = [f"{m}/{p}/{o}" for o in OPTIMIZERS for m in gpu_models.MODELS for p in PRECISIONS]
    default = TINY_CASES if options.tiny else every
    cases = options.cases.split(",") if options.cases else default
    arguments = ["--sides", options.sides, "--rounds", str(rounds)]
    run_cases(__file__, cases, arguments, options.output, options.seconds)


if __name__ == "__main__":
    main()
