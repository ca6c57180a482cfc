"""Traces two ranks over NCCL on one card, and compares the peak memory of ZeRO-3 with that of FSDP2.

    python bench/runtime/gpu_trace.py [-o results.json]
    python bench/runtime/gpu_trace.py --tiny        # a trial with tiny models; without a GPU over gloo

trace data, trace zero3   profiles a rank of a data-parallel and of a ZeRO-3 plan in float32, and counts the
                          microseconds in which a kernel of a collective and one that computes run at once
memory ...                the peak of a rank in bfloat16 with AdamW: ZeRO-3 of raddle, compiled, beside
                          FSDP2 with its mixed precision, whose blocks are compiled

Each case has two processes. They all compile at the same time; then the cases are measured one after the
other. NCCL takes two ranks on one card as nccl_equal.py says; it connects them by sockets, which is slow:
the times say nothing about NCCL. After `--seconds`, the cases that are left are in `not_run`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from gpu_timing import place, synchronize
from nccl_equal import environment
from torch import nn

import raddle
from raddle.program import repeated_blocks
from raddle.zoo.gpt import GPT

RANKS, WARMUP, STEPS = 2, 3, 3
SECONDS = 115.0
CASES = (
    "trace data", "trace zero3", "memory raddle bf16:pure", "memory fsdp2 bf16", "memory raddle bf16",
)  # fmt: skip
Span = tuple[float, float]  # start and end, in microseconds


class Size(NamedTuple):
    """The size of a transformer, and the samples of a rank."""

    layers: int
    width: int
    heads: int
    words: int
    tokens: int
    samples: int


# Few parameters for many tokens: otherwise the sockets take much longer than the kernels.
TRACED = Size(layers=8, width=512, heads=8, words=4096, tokens=1024, samples=24)
MEASURED = Size(layers=24, width=1024, heads=16, words=8192, tokens=1024, samples=4)
TINY = Size(layers=3, width=64, heads=2, words=64, tokens=16, samples=2)


# -- a rank ------------------------------------------------------------------------------------------------


def run_rank(case: str, folder: Path, *, tiny: bool) -> None:
    """Compile; wait until the file `go` exists; measure. Rank 0 writes the result."""
    torch.set_num_threads(1)
    if tiny:
        repeated_blocks.MIN_FLOPS = 0  # otherwise tiny blocks are not worth a cut
    rank = int(os.environ["RANK"])
    if place() == "cuda":
        torch.cuda.set_device(0)
    kind, _, setting = case.partition(" ")
    size = TINY if tiny else TRACED if kind == "trace" else MEASURED
    step, close = make_side(setting, size)
    losses = [float(step()) for _ in range(WARMUP)]
    synchronize()
    (folder / f"ready{rank}").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    row = traced(step, folder / f"trace{rank}.json") if kind == "trace" else peaks(step)
    row["losses"] = [*losses, float(step())]
    (folder / f"row{rank}.json").write_text(json.dumps(row))
    close()


Side = tuple[Callable[[], Any], Callable[[], None]]  # a step, which returns the loss, and the end


def make_side(setting: str, size: Size) -> Side:
    """Return a step of raddle or of FSDP2."""
    torch.manual_seed(0)
    model: nn.Module = GPT(
        vocabulary=size.words, context=size.tokens, layers=size.layers, heads=size.heads,
        width=size.width, dropout=0.0,
    )  # fmt: skip
    shape = (2, RANKS * size.samples, size.tokens)
    tokens = torch.randint(size.words, shape, device=place())
    batch = tokens[0], tokens[1]
    if setting.startswith("fsdp2"):
        return fsdp2_side(model, batch)
    if setting in ("data", "zero3"):
        return raddle_side(model, batch, setting, "float32")
    return raddle_side(model, batch, "zero3", f"{setting.split()[1]},gather=bf16,reduce=bf16")


def criterion(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def raddle_side(model: nn.Module, batch: Any, method: str, precision: str) -> Side:
    loss = raddle.supervised(criterion)
    graph = raddle.capture(model, tuple(t.cpu() for t in batch), loss)
    sync = "sharded:parameters" if method == "zero3" else "allreduce"
    plan = raddle.plan(graph, cluster=f"local:{RANKS}", method="data", sync=sync).plan
    trainer = raddle.parallelize(
        model, adamw, plan=replace(plan, precision=precision, optimizer="adamw"), graph=graph,
        loss=loss, compile=True,
    )  # fmt: skip
    return lambda: trainer.step(batch).loss, trainer.close


def fsdp2_side(model: nn.Module, batch: Any) -> Side:
    """FSDP2 as its users run it: every block is compiled and sharded, then the model is sharded."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("nccl" if place() == "cuda" else "gloo")
    mesh = init_device_mesh(place(), (RANKS,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    model = model.to(place())
    assert isinstance(model, GPT)
    for block in model.h:
        block.compile(dynamic=False)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = adamw(model.parameters())
    x, y = (t.chunk(RANKS)[dist.get_rank()] for t in batch)
    compiled_loss = torch.compile(criterion, dynamic=False)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = compiled_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, dist.destroy_process_group


def peaks(step: Callable[[], Any]) -> dict[str, Any]:
    """Return the peak of memory of some steps, and what is allocated between steps, in MiB."""
    if place() == "cpu":
        step()
        return {"peak_mib": 0.0, "between_steps_mib": 0.0}
    synchronize()
    torch.cuda.reset_peak_memory_stats()
    between = torch.cuda.memory_allocated()
    for _ in range(STEPS):
        step()
    synchronize()
    peak = torch.cuda.max_memory_allocated()
    return {"peak_mib": round(peak / 2**20, 1), "between_steps_mib": round(between / 2**20, 1)}


# -- the trace ---------------------------------------------------------------------------------------------


def traced(step: Callable[[], Any], path: Path) -> dict[str, Any]:
    """Profile some steps; return for how long collectives and computing kernels run, alone and at once."""
    from torch.profiler import ProfilerActivity, profile

    gpu = place() == "cuda"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    with profile(activities=kinds) as profiler:
        for _ in range(STEPS):
            step()
        synchronize()
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    # Without a GPU, the operators of the CPU and gloo's collectives stand for kernels.
    kernels = [
        e for e in events if e.get("cat") in (("kernel",) if gpu else ("cpu_op", "user_annotation"))
    ]
    collective, compute = list[Span](), list[Span]()
    for event in kernels:
        span = event["ts"], event["ts"] + event["dur"]
        (collective if _is_collective(event) else compute).append(span)
    return {
        **overlap(collective, compute),
        "collective_kernels": len(collective),
        "compute_kernels": len(compute),
        "streams": len({(e["pid"], e["tid"]) for e in kernels}),
        "collective_names": sorted({e["name"][:60] for e in kernels if _is_collective(e)}),
    }


def _is_collective(event: dict[str, Any]) -> bool:
    return re.match(r"nccl|gloo:", event["name"]) is not None


def overlap(collective: Iterable[Span], compute: Iterable[Span]) -> dict[str, Any]:
    """Return the microseconds of collectives, of computing, and of both at once.

    >>> overlap([(0.0, 4.0), (3.0, 6.0)], [(5.0, 9.0)])
    {'collective_us': 6.0, 'compute_us': 4.0, 'both_us': 1.0, 'share': 0.25, 'overlap': True}

    share: of the shorter one of the two.
    """
    one, other = merged(collective), merged(compute)
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)
    total, computing = (sum(end - start for start, end in spans) for spans in (one, other))
    shorter = min(total, computing)
    share = round(both / shorter, 3) if shorter else 0.0
    return {
        "collective_us": round(total, 1), "compute_us": round(computing, 1), "both_us": round(both, 1),
        "share": share, "overlap": share > 0.05,
    }  # fmt: skip


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans as spans that do not touch, in order."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(result[-1][1], end)
        else:
            result.append((start, end))
    return result


# -- all cases ---------------------------------------------------------------------------------------------


class Job:
    """The processes of a case."""

    def __init__(self, case: str, folder: Path, *, tiny: bool) -> None:
        self.case, self.folder, self.error = case, folder, ""
        folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, __file__, "--rank-of", case, "--folder", str(folder)]
        command += ["--tiny"] if tiny else []
        self.processes = [
            subprocess.Popen(
                [*command], env=environment(rank, RANKS, port) | {"TORCHINDUCTOR_COMPILE_THREADS": "2"},
                stdout=subprocess.DEVNULL, stderr=(folder / f"log{rank}").open("w"),
            )
            for rank in range(RANKS)
        ]  # fmt: skip

    def wait_for(self, files: str, deadline: float) -> bool:
        """Wait until each rank has written its file; return False if one fails or time is over."""
        while not all((self.folder / files.format(rank)).exists() for rank in range(RANKS)):
            if any(process.poll() for process in self.processes):
                time.sleep(1)  # for the other rank's message
                self.error = "\n".join(
                    (self.folder / f"log{rank}").read_text()[-800:] for rank in range(RANKS)
                )
                return False
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def measure(self, deadline: float) -> dict[str, Any] | None:
        """Let the ranks measure; return the row of rank 0, and the larger peak of both."""
        (self.folder / "go").touch()
        if not self.wait_for("row{}.json", deadline):
            return None
        for process in self.processes:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
        rows = [json.loads((self.folder / f"row{rank}.json").read_text()) for rank in range(RANKS)]
        if "peak_mib" in rows[0]:
            rows[0]["peak_mib"] = max(row["peak_mib"] for row in rows)
        return {"case": self.case, **rows[0]}

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", default="")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--tiny", action="store_true", help="a tiny model, as a trial")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rank-of", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        run_rank(options.rank_of, Path(options.folder), tiny=options.tiny)
        return
    deadline = time.monotonic() + options.seconds
    rows, errors, not_run = list[dict[str, Any]](), dict[str, str](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            Job(case, Path(folder) / str(number), tiny=options.tiny)
            for number, case in enumerate(options.cases.split(","))
        ]
        try:
            ready = [job for job in jobs if job.wait_for("ready{}", deadline - 15)]
            for job in ready:
                row = job.measure(deadline)
                if row is not None:
                    rows.append(row)
                    print(json.dumps(row), flush=True)
        finally:
            for job in jobs:
                job.end()
        done = {row["case"] for row in rows}
        for job in jobs:
            if job.error:
                errors[job.case] = job.error
                print(f"{job.case}: {job.error}", flush=True)
            elif job.case not in done:
                not_run.append(job.case)
    peak = {
        row["case"].removeprefix("memory "): row["peak_mib"] for row in rows if "peak_mib" in row
    }
    base = peak.get("fsdp2 bf16")
    report = {
        "torch": torch.__version__,
        "overlap": {row["case"]: row["overlap"] for row in rows if "overlap" in row},
        "peak_beside_fsdp2": {side: round(p / base, 3) for side, p in peak.items()} if base else {},
        "rows": rows, "errors": errors, "not_run": not_run,
    }  # fmt: skip
    print(
        json.dumps({key: report[key] for key in ("overlap", "peak_beside_fsdp2", "not_run")}),
        flush=True,
    )
    if options.output:
        Path(options.output).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
