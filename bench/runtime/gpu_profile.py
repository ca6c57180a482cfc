"""Profiles steps of gpu_plans.py's cases: where the host's time and the GPU's go.

    python bench/runtime/gpu_profile.py pipeline/gpt/bfloat16 job/resnet50/bfloat16 -o FOLDER

For each case a text file: milliseconds a step until the host has started it, of the host's main thread, and
until the GPU has ended; seconds of each action of raddle; the functions and operators that take the host
longest; the kernels that take the GPU longest.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import io
import pathlib
import pstats
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from gpu_plans import KINDS, Case
from gpu_timing import Step, prepare, synchronize
from torch.profiler import ProfilerActivity, profile

IN_A_ROW, ROUNDS, LINES = 4, 5, 40
Say = Callable[..., None]


def host_and_gpu(step: Step) -> list[float]:
    """Return milliseconds a step: until it is started, of the main thread, until it has ended."""
    synchronize()
    start, busy = time.perf_counter(), time.thread_time()
    for _ in range(IN_A_ROW):
        step()
    times = [time.perf_counter() - start, time.thread_time() - busy]
    synchronize()
    return [1e3 * t / IN_A_ROW for t in (*times, time.perf_counter() - start)]


def say_times(say: Say, steps: dict[str, Step]) -> None:
    rounds = [{side: host_and_gpu(step) for side, step in steps.items()} for _ in range(ROUNDS)]
    for side in steps:
        medians = [
            statistics.median(column) for column in zip(*(r[side] for r in rounds), strict=True)
        ]
        say(side, "started {:.2f}, main thread {:.2f}, ended {:.2f} ms".format(*medians))


def say_actions(say: Say, case: Case, steps: dict[str, Step]) -> None:
    """Say how long the host needs for each kind of action, and for each one."""
    for side, trainer in case.trainers.items():
        times = defaultdict[str, list[tuple[float, str]]](list)

        def record(action: Any, start: float, end: float, times: Any = times) -> None:
            label = getattr(getattr(action, "call", None), "label", "")
            times[type(action).__name__].append((round(1e3 * (end - start), 3), label[:40]))

        trainer.executor.record = record
        steps[side]()
        trainer.executor.record = None
        for kind, entries in times.items():
            say(side, kind, f"{len(entries)} in {sum(t for t, _ in entries):.2f} ms:", entries[:24])


def say_functions(say: Say, side: str, step: Step) -> None:
    python = cProfile.Profile()
    python.runcall(step)
    for order in ("tottime", "cumtime"):
        text = io.StringIO()
        pstats.Stats(python, stream=text).sort_stats(order).print_stats(LINES)
        say(side, order, text.getvalue())


def say_operators(say: Say, side: str, step: Step) -> None:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        step()
        synchronize()
    rows = recorded.key_averages()
    say(rows.table(sort_by="self_cpu_time_total", row_limit=LINES, max_name_column_width=70))
    if torch.cuda.is_available():
        say(rows.table(sort_by="self_cuda_time_total", row_limit=LINES, max_name_column_width=70))


def run(name: str, folder: pathlib.Path) -> None:
    kind, model, precision = name.split("/")
    case = Case(model, precision)
    prepared = prepare(KINDS[kind](case))
    gc.collect()
    gc.freeze()
    with (folder / f"{name.replace('/', '-')}.txt").open("w", encoding="utf-8") as file:

        def say(*words: Any) -> None:
            print(*words, file=file, flush=True)

        say(name, prepared.first_steps_s, prepared.failed)
        say_times(say, prepared.steps)
        say_actions(say, case, prepared.steps)
        for side, step in prepared.steps.items():
            say_functions(say, side, step)
            say_operators(say, side, step)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cases", nargs="+", help="kind/model/precision, as of gpu_plans.py")
    parser.add_argument("-o", "--output", default=".", help="a folder for the text files")
    options = parser.parse_args()
    folder = pathlib.Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.cases:
        run(name, folder)


if __name__ == "__main__":
    main()
