"""Measures lowering and simulating ZeRO-3 for a 7B transformer on 8 to 1,024 devices; see README.md.

python bench/zero/run.py [DEVICES ...]     each number in a process of its own, three times
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time

from raddle.graph.supervised import supervised

COUNTS = (8, 32, 128, 512, 1024)  # devices
RUNS = 3  # of each number of devices; the table has medians and ranges


def measure(count: int) -> None:
    """Lower, simulate and check one step on `count` devices, and print a row as JSON.

    A small run first compiles the event loop.
    """
    import torch
    import torch.nn.functional as F

    from raddle.clusters import cluster
    from raddle.graph.capture import capture
    from raddle.graph.graph import Graph
    from raddle.program.checks.check import check
    from raddle.program.lower import lower
    from raddle.searches.planning import plan_for
    from raddle.simulation.memory.peaks import peak_bytes
    from raddle.simulation.timeline import simulate
    from raddle.zoo.gpt import GPT

    def transformer(batch: int, layers: int, width: int) -> Graph:
        with torch.device("meta"):
            model = GPT(
                vocabulary=32000, context=2048, layers=layers, heads=32, width=width, dropout=0.0
            )
            tokens = torch.zeros(batch, 2048, dtype=torch.long)
        loss = lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten())  # noqa: E731
        return capture(model, (tokens, tokens), supervised(loss))

    small, pair = transformer(2, 1, 64), cluster("h100:1x2")
    simulate(lower(small, plan_for(small, pair, "data", sync="sharded:parameters")), pair)
    graph, machine = transformer(count, 32, 4096), cluster(f"h100:{count // 8}x8")
    plan = plan_for(graph, machine, "data", sync="sharded:parameters")
    start = time.perf_counter()
    program = lower(graph, plan)
    lowered = time.perf_counter()
    timeline = simulate(program, machine)
    simulated = time.perf_counter()
    peak = max(peak_bytes(timeline))
    memory = time.perf_counter()
    check(program)
    print(
        json.dumps(
            {
                "tasks": len(timeline.tasks.duration),
                "lower": lowered - start,
                "simulate": simulated - lowered,
                "memory": memory - simulated,
                "check": time.perf_counter() - memory,
                "process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "step": float(timeline.end.max()) / 1e6,
                "peak": peak / 1e9,
            }
        )
    )


def main(counts: list[int]) -> None:
    """Measure each number of devices and print the table."""
    print("| devices | tasks | lower, s | simulate, s | memory over time, s | check, s | process, MiB |"
          " step, ms | peak, GB |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for count in counts:
        runs = []
        for _ in range(RUNS):
            command = ["taskset", "-c", "0", sys.executable, __file__, "--one", str(count)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
        cells = [str(count), f"{runs[0]['tasks']:,}"]
        for key, digits in (
            ("lower", 2),
            ("simulate", 2),
            ("memory", 2),
            ("check", 2),
            ("process", 0),
        ):
            values = sorted(run[key] for run in runs)
            middle = statistics.median(values)
            cells.append(f"{middle:.{digits}f} ({values[0]:.{digits}f}–{values[-1]:.{digits}f})")
        cells += [f"{runs[0]['step']:.0f}", f"{runs[0]['peak']:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(int(sys.argv[2]))
    else:
        main([int(word) for word in sys.argv[1:]] or list(COUNTS))
