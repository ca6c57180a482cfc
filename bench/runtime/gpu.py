"""Times one rank on a GPU: a step of raddle beside PyTorch's, eager and compiled, beside DDP and FSDP2.

    python bench/runtime/gpu.py [-o results.json] [--cases resnet50/bfloat16/sgd,...] [--sides eager,raddle]

A side is one way to train, such as "raddle" or "ddp compiled" (SIDES). Each case (model, precision,
optimizer) has a process, which makes all sides and runs them until they are compiled. Then the processes
measure one after the other, so that nothing else runs. In a process the sides take turns, step by step; a
round is a step of every side.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import gpu_models
import torch
import torch.distributed as dist
from torch import nn

import raddle
from raddle.plans.notation import read_tiles
from raddle.plans.plan import Plan

SIDES = ("eager", "compiled", "raddle", "raddle compiled", "ddp compiled", "fsdp2 compiled")
WARMUP, ROUNDS = 4, 30  # steps of each side: untimed at first, then timed
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
Step = Callable[[], object]


def make_optimizer(name: str) -> Callable[[Any], torch.optim.Optimizer]:
    """Return a function that makes the optimizer "adamw" or "sgd" for given parameters."""
    if name == "adamw":
        return lambda p: torch.optim.AdamW(p, lr=1e-4, weight_decay=0.01)
    return lambda p: torch.optim.SGD(p, lr=1e-4)


def plain_step(
    work: gpu_models.Work,
    forward: Callable[..., Any],
    optimizer: torch.optim.Optimizer,
    precision: Any,
) -> Step:
    """Return a step as people write it: forward and loss under autocast, backward, update."""

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=precision, enabled=precision is not None):
            loss = forward(*work.inputs, *work.targets)
        loss.backward()
        optimizer.step()

    return step


def make_side(side: str, work: gpu_models.Work, precision: Any, optimizer: str) -> Step:
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
            plan=Plan(tiles, devices=1, bn="local"),
            graph=graph,
            loss=raddle.supervised(work.loss, targets=len(targets)),
            device="cuda:0",
            autocast=precision,
            compile=side == "raddle compiled",
        )
        return lambda: trainer.step((*work.inputs, *work.targets))
    if side.startswith("ddp"):
        model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    elif side.startswith("fsdp2"):
        _shard(model)
    count = len(work.inputs)

    def forward(*batch: Any) -> Any:
        return work.loss(model(*batch[:count]), *batch[count:])

    compiled = side.endswith("compiled")
    run = torch.compile(forward, dynamic=False) if compiled else forward
    return plain_step(work, run, make(model.parameters()), precision)


def _shard(model: nn.Module) -> None:
    """Apply FSDP2 as its documentation does: to every member of a ModuleList, then to the model."""
    from torch.distributed.fsdp import fully_shard

    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList):
            for block in module:
                fully_shard(block)
    fully_shard(model)


def measure(name: str, precision: str, optimizer: str, sides: Sequence[str]) -> dict[str, Any]:
    """Time the sides of one case in turns; return a row of the results.

    After everything is compiled, wait for a line on stdin, so that other processes do not disturb.
    """
    work = gpu_models.load(name)
    steps: dict[str, Step] = {}
    state_bytes, failed = {}, {}
    compile_seconds = {}
    for side in sides:
        before, start = torch.cuda.memory_allocated(), time.perf_counter()
        try:
            steps[side] = make_side(side, work, PRECISIONS[precision], optimizer)
            for _ in range(WARMUP):
                steps[side]()
            torch.cuda.synchronize()
        except Exception as error:
            failed[side] = f"{type(error).__name__}: {str(error)[:300]}"
            steps.pop(side, None)
        torch.cuda.empty_cache()
        compile_seconds[side] = time.perf_counter() - start
        state_bytes[side] = torch.cuda.memory_allocated() - before
    torch.cuda.empty_cache()
    print("READY", file=sys.stderr, flush=True)
    sys.stdin.readline()
    times: dict[str, list[float]] = {side: [] for side in steps}
    peaks: dict[str, float] = {}
    for number in range(-3, ROUNDS):  # rounds -3 to -1 are not recorded
        for side in list(steps) if number % 2 else list(steps)[::-1]:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before, start = torch.cuda.memory_allocated(), time.perf_counter()
            steps[side]()
            torch.cuda.synchronize()
            if number >= 0:
                times[side].append(1e3 * (time.perf_counter() - start))
                # The memory of this side alone: its parameters and states, and the bytes that a step adds.
                peak = torch.cuda.max_memory_allocated() - before + state_bytes[side]
                peaks[side] = max(peaks.get(side, 0.0), peak / 2**20)
    return {
        "model": name,
        "precision": precision,
        "optimizer": optimizer,
        "ms": {side: round(statistics.median(t), 3) for side, t in times.items()},
        "quartiles": {
            side: [round(q, 3) for q in statistics.quantiles(t, n=4)[::2]]
            for side, t in times.items()
        },
        "peak_mib": {side: round(peak) for side, peak in peaks.items()},
        "first_steps_s": {side: round(s, 1) for side, s in compile_seconds.items()},
        "host_waits": {side: host_waits(step) for side, step in steps.items() if "raddle" in side},
        "failed": failed,
    }


def host_waits(step: Step) -> str:
    """Return the file and line where a step waits for the GPU; "" if it never waits."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        import traceback

        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.line}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


def run_worker(case: str, sides: Sequence[str]) -> None:
    """Measure one case in this process, and print the row as a line of JSON."""
    name, precision, optimizer = case.split("/")
    torch.cuda.set_device(0)
    if any(side.startswith(("ddp", "fsdp2")) for side in sides):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "1"}
        os.environ["MASTER_PORT"] = str(20000 + os.getpid() % 20000)
        dist.init_process_group("nccl")
    print(json.dumps(measure(name, precision, optimizer, sides)), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def main(cases: Sequence[str], sides: Sequence[str], output: str) -> None:
    """Start a process for each case; when all have compiled, let them measure one after the other."""
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    workers = [
        (case, subprocess.Popen(
            [sys.executable, __file__, "--worker", case, "--sides", ",".join(sides)],
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
    results = []
    for case, process in workers:
        out, errors = process.communicate("go\n")
        for line in out.splitlines():
            if line.startswith("{"):
                results.append({**json.loads(line), "card": torch.cuda.get_device_name()})
                print(line, flush=True)
                break
        else:
            print(f"{case}: {errors[-600:]}", flush=True)
    if output:
        with open(output, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "results": results}, file, indent=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", default="")
    parser.add_argument("--worker", default="")
    parser.add_argument("--sides", default=",".join(SIDES[:4]))
    default = [f"{m}/{p}/sgd" for m in gpu_models.MODELS for p in PRECISIONS]
    parser.add_argument("--cases", default=",".join(default))
    options = parser.parse_args()
    if options.worker:
        run_worker(options.worker, options.sides.split(","))
    else:
        main(options.cases.split(","), options.sides.split(","), options.output)
