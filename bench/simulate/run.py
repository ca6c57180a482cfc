"""Measures time and memory of simulating data-parallel resnet50 on 16 to 1,024 devices; see README.md."""

from __future__ import annotations

import cProfile
import json
import math
import pathlib
import pstats
import resource
import subprocess
import sys
import time
from dataclasses import replace

HERE = pathlib.Path(__file__).parent
COUNTS = (16, 64, 256, 1024)  # devices


def measure(count: int, profile: bool) -> None:
    """Lower and simulate three steps on `count` devices, and print a row as JSON.

    A small run first compiles the event loop. profile: print where the Python code spends its time instead.
    """
    from raddle import zoo
    from raddle.clusters import cluster
    from raddle.graph.capture import capture
    from raddle.program.lower import lower
    from raddle.searches.planning import plan_for
    from raddle.simulation.timeline import simulate

    def graph_of(name: str, batch: int):  # type: ignore[no-untyped-def]
        work = zoo.load(name, batch=batch)
        return capture(work.model, work.batch, work.loss, name=name)

    small, pair = graph_of("lenet-tiny", 8), cluster("p100:1x2")
    simulate(lower(small, plan_for(small, pair, "data", model="lenet-tiny", batch=8)), pair)
    graph, machine = graph_of("resnet50", 32 * count), cluster(f"p100:{count // 4}x4")
    plan = replace(plan_for(graph, machine, "data", model="resnet50", batch=32 * count), steps=3)
    profiler = cProfile.Profile() if profile else None
    if profiler:
        profiler.enable()
    start = time.perf_counter()
    program = lower(graph, plan)
    middle = time.perf_counter()
    timeline = simulate(program, machine)
    end = time.perf_counter()
    if profiler:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(12)
        return
    row = {
        "devices": count,
        "tasks": len(timeline.start),
        "lower_s": round(middle - start, 2),
        "simulate_s": round(end - middle, 2),
        "process_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "step_ms": round(timeline.step_seconds * 1e3, 1),
    }
    print(json.dumps(row))


def plot(rows: list[dict[str, float]]) -> str:
    """Return a small SVG of the seconds over the number of devices, both logarithmic."""

    def x(devices: float) -> float:
        """Return the pixel across."""
        return 60 + 63 * math.log2(devices / 16)

    def y(seconds: float) -> float:
        """Return the pixel down."""
        return 150 - 45 * math.log10(max(seconds, 0.01) / 0.1)

    def text(across: float, down: float, content: object, attributes: str = "") -> str:
        """Return a text at a position in pixels."""
        return f'<text x="{across:.0f}" y="{down:.0f}" {attributes}>{content}</text>'

    style = 'font-family="sans-serif" font-size="11"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="540" height="230" {style}>']
    parts.append('<rect width="540" height="230" fill="white"/>')
    for s in (0.01, 0.1, 1, 10):
        parts.append(f'<line x1="60" x2="460" y1="{y(s):.0f}" y2="{y(s):.0f}" stroke="#ddd"/>')
        parts.append(text(52, y(s) + 4, f"{s} s", 'text-anchor="end"'))
    for name, colour in (("lower_s", "#0072b2"), ("simulate_s", "#d55e00")):
        points = " ".join(f"{x(r['devices']):.0f},{y(r[name]):.0f}" for r in rows)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(
            text(x(rows[-1]["devices"]) + 6, y(rows[-1][name]) + 4, name[:-2], f'fill="{colour}"')
        )
    parts += [text(x(r["devices"]), 218, r["devices"], 'text-anchor="middle"') for r in rows]
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    """Measure each number of devices in a process of its own; print the table and write scaling.svg."""
    print(
        "| devices | tasks | lower, s | simulate, s | process, MB | step, ms |\n|---|---|---|---|---|---|"
    )
    rows = []
    for count in COUNTS:
        command = [sys.executable, "-W", "ignore", __file__, str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print("| " + " | ".join(str(v) for v in rows[-1].values()) + " |", flush=True)
    (HERE / "scaling.svg").write_text(plot(rows))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(int(sys.argv[1]), "--profile" in sys.argv)
    else:
        main()
