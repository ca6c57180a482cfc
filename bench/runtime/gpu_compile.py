"""Measures how long torch.compile takes in raddle and in plain PyTorch: transformers of 2 and 32 layers.

    python bench/runtime/gpu_compile.py [-o results.json]
    python bench/runtime/gpu_compile.py --tiny    # a trial with tiny models, on the CPU if there is no GPU

A start is a process that makes the model, the optimizer and the trainer, and makes one step. Starts with a
fresh cache of compiled code (TORCHINDUCTOR_CACHE_DIR) compile; a second start takes the code from there.
raddle's starts run one after the other on one half of the cores, PyTorch's at the same time on the other
half. After the steps with 32 layers, raddle also predicts, evaluates and trains on a smaller batch, twice:
the second time nothing may be compiled. What is not finished after `--seconds` is in `not_run`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SECONDS = 140.0
LAYERS = (2, 32)
BATCH, TOKENS, WIDTH, WORDS = 4, 1024, 2048, 8192
TINY = (4, 16, 32, 64)  # instead of these
THREADS = 8  # of inductor, at most


# -- a start -----------------------------------------------------------------------------------------------


def run_start(
    side: str, layers: int, *, tiny: bool, began: float, all_ways: bool
) -> dict[str, Any]:
    """Return what one start takes, in seconds.

    began: the time at which the process was started. all_ways: predict, evaluate and train on a smaller
    batch too.
    """
    import torch
    from gpu_timing import place, synchronize
    from torch import nn

    import raddle
    from raddle.program import repeated_blocks
    from raddle.zoo.gpt import GPT

    if tiny:
        repeated_blocks.MIN_FLOPS = 0  # otherwise tiny blocks are not worth a cut
    samples, tokens, width, words = TINY if tiny else (BATCH, TOKENS, WIDTH, WORDS)
    row: dict[str, Any] = {"imports_s": time.monotonic() - began}

    def timed(name: str, function: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = function()
        synchronize()
        row[name] = time.perf_counter() - start
        return result

    def make_model() -> nn.Module:
        with torch.device("meta"):
            model = GPT(
                vocabulary=words, context=tokens, layers=layers, heads=width // 16 if tiny else 16,
                width=width,
            )  # fmt: skip
        model.to_empty(device="cpu")
        for parameter in model.parameters():  # random numbers would take seconds
            parameter.detach().fill_(0.01)
        return model.to(place()) if side.startswith("plain") else model

    def criterion(logits: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    model = timed("model_s", make_model)
    batch = tuple(torch.randint(words, (2, samples, tokens), device=place()))
    smaller = tuple(tensor[: samples - 1] for tensor in batch)
    if side.startswith("plain"):
        step = timed("prepare_s", lambda: plain_step(model, batch, criterion, side))
        timed("first_step_s", step)
        row["start_s"] = time.monotonic() - began
        timed("second_step_s", step)
        timed("third_step_s", step)
        return row

    def make_trainer() -> Any:
        loss = raddle.supervised(criterion)
        graph = raddle.capture(model, tuple(t.cpu() for t in batch), loss)
        plan = raddle.plan(graph, cluster="local:1", method="data").plan
        return raddle.parallelize(
            model, lambda p: torch.optim.SGD(p, lr=1e-4), plan=plan, graph=graph, loss=loss,
            device=place(), precision="bf16", compile=side == "raddle compiled",
        )  # fmt: skip

    trainer = timed("prepare_s", make_trainer)
    timed("first_step_s", lambda: trainer.step(batch))
    row["start_s"] = time.monotonic() - began
    timed("second_step_s", lambda: trainer.step(batch))
    timed("third_step_s", lambda: trainer.step(batch))
    row |= compilations(trainer)
    if all_ways:
        row |= second_time(trainer, batch, smaller)
    trainer.close()
    return row


SECOND_TIME = "-- every way has run once --"


def second_time(trainer: Any, batch: Any, smaller: Any) -> dict[str, Any]:
    """Use the trainer in every way, twice; return what is compiled the second time."""
    from gpu_timing import recompiles, synchronize

    functions = trainer.setup.functions
    ways: dict[str, Callable[[], Any]] = {
        "step": lambda: trainer.step(batch),
        "predict": lambda: trainer.predict(batch),
        "evaluate": lambda: trainer.evaluate(batch),
        "smaller batch": lambda: trainer.step(smaller),
        "evaluate smaller batch": lambda: trainer.evaluate(smaller),
    }
    first_s = {}
    for way, function in ways.items():
        start = time.perf_counter()
        function()
        synchronize()
        first_s[way] = time.perf_counter() - start
    compiled = functions.compiled
    # Lines that torch prints for recompilations are counted from here on.
    print(SECOND_TIME, file=sys.stderr, flush=True)
    return {
        "first_s": first_s,
        "functions_of_all_ways": compiled,
        "recompiled": {way: recompiles(function) for way, function in ways.items()},
        "recompiled_functions": functions.compiled - compiled,
    }


def plain_step(model: Any, batch: Any, criterion: Any, side: str) -> Callable[[], None]:
    """Return a step of plain PyTorch under autocast, compiled if the side says so."""
    import torch
    from gpu_timing import place

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def forward(x: Any, y: Any) -> Any:
        return criterion(model(x), y)

    run = torch.compile(forward, dynamic=False) if side == "plain compiled" else forward

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(place(), dtype=torch.bfloat16):
            loss = run(*batch)
        loss.backward()
        optimizer.step()

    return step


def compilations(trainer: Any) -> dict[str, Any]:
    """Return how many segments a step has, how many of them differ, and how many were compiled."""
    from raddle.runtime.actions import Forward

    actions = trainer.executor.rank_actions.actions
    calls = [action.call for action in actions if isinstance(action, Forward)]
    return {
        "segments": len(calls),
        "distinct_blocks": len({call.code.key for call in calls}),
        "compiled_functions": trainer.setup.functions.compiled,
        "compile_s": trainer.setup.functions.seconds,
    }


# -- all starts --------------------------------------------------------------------------------------------


class Bench:
    """Runs the starts: one after the other in each lane, which has a part of the cores."""

    def __init__(self, folder: Path, *, tiny: bool, seconds: float) -> None:
        self.folder, self.tiny = folder, tiny
        self.deadline = time.monotonic() + seconds
        self.rows: dict[str, dict[str, Any]] = {}
        self.not_run: list[str] = []

    def lane(self, sides: str, cores: list[int]) -> None:
        """Run the starts of "raddle" or of "plain" on these cores."""
        small, large = (2, 4) if self.tiny else LAYERS
        for side, layers, cache, name in (
            ("compiled", small, "small", "2 layers"),
            ("compiled", large, "large", "32 layers"),
            ("eager", large, "none", "32 layers, eager"),
            ("compiled", large, "large", "32 layers, second start"),
        ):
            more = ["--all-ways"] if name == "32 layers" else []
            arguments = ["--start", f"{sides} {side}", "--layers", str(layers), *more]
            self.start(arguments, f"{sides}-{cache}", f"{sides}, {name}", cores)

    def start(self, arguments: list[str], cache: str, name: str, cores: list[int]) -> None:
        """Run a start in a process of its own."""
        left = self.deadline - time.monotonic()
        if left < 1:
            self.not_run.append(name)
            return
        cache_folder = self.folder / cache
        command = [
            sys.executable, __file__, *arguments, "--began", str(time.monotonic()),
            *(["--tiny"] if self.tiny else []),
        ]  # fmt: skip
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(cache_folder),
            "TORCHINDUCTOR_COMPILE_THREADS": str(min(THREADS, len(cores))),
            "TORCH_LOGS": "recompiles",
            "OMP_NUM_THREADS": str(min(THREADS, len(cores))),
        }
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, cores)
        try:
            out, log = process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            self.not_run.append(name)
            return
        lines = [line for line in out.splitlines() if line.startswith("{")]
        if not lines:
            self.rows[name] = {"error": log[-1500:]}
            print(f"{name}: {log[-1500:]}", flush=True)
            return
        row = json.loads(lines[-1])
        # torch keeps one folder for each compiled graph; forward and backward are two.
        row["graphs_in_cache"] = len(list(cache_folder.glob("fxgraph/*/*")))
        if SECOND_TIME in log:
            row["recompilations"] = log.split(SECOND_TIME)[1].count("Recompiling function")
        self.rows[name] = rounded(row)
        print(f"{name}: {json.dumps(self.rows[name])}", flush=True)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the figures that are asked for, and whether they are as they must be."""
    result: dict[str, Any] = {}
    small, large = rows.get("raddle, 2 layers", {}), rows.get("raddle, 32 layers", {})
    for side in ("raddle", "plain"):
        one, other = rows.get(f"{side}, 2 layers", {}), rows.get(f"{side}, 32 layers", {})
        if "first_step_s" in one and "first_step_s" in other:
            result[f"{side}: first step, 32 layers / 2 layers"] = round(
                other["first_step_s"] / one["first_step_s"], 3
            )
        cached, eager = (
            rows.get(f"{side}, 32 layers, {kind}", {}) for kind in ("second start", "eager")
        )
        if "start_s" in cached and "start_s" in eager:
            result[f"{side}: second start - eager start, s"] = round(
                cached["start_s"] - eager["start_s"], 3
            )
    if "compile_s" in small and "compile_s" in large:
        result["raddle: compiling, 32 layers / 2 layers"] = round(
            large["compile_s"] / small["compile_s"], 3
        )
    if "recompiled" in large:
        result["raddle: compiled functions, distinct blocks"] = [
            large["compiled_functions"], large["distinct_blocks"],
        ]  # fmt: skip
        result["raddle: recompilations after every way has run once"] = (
            large["recompilations"] + large["recompiled_functions"]
            + sum(map(bool, large["recompiled"].values()))
        )  # fmt: skip
    limits = {
        "raddle: first step, 32 layers / 2 layers": 2.0,
        "raddle: second start - eager start, s": 5.0,
        "raddle: recompilations after every way has run once": 0,
    }
    result["as_it_must_be"] = {
        key: key in result and result[key] <= limit for key, limit in limits.items()
    }
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", default="")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny models of 2 and 4 layers, as a trial"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--start", default="", help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--all-ways", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        row = run_start(
            options.start, options.layers, tiny=options.tiny, began=options.began,
            all_ways=options.all_ways,
        )  # fmt: skip
        print(json.dumps(row), flush=True)
        return
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0, 1]
    half = max(1, len(cores) // 2)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        bench = Bench(Path(folder), tiny=options.tiny, seconds=options.seconds)
        lanes = [
            pool.submit(bench.lane, "raddle", cores[:half]),
            pool.submit(bench.lane, "plain", cores[-half:]),
        ]
        for lane in lanes:
            lane.result()
    report = {"summary": summary(bench.rows), "starts": bench.rows, "not_run": bench.not_run}
    print(json.dumps(report["summary"], indent=1), flush=True)
    if options.output:
        Path(options.output).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
