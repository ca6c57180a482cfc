"""Measures time and memory of capturing models of the zoo, with one process per model and one thread."""

from __future__ import annotations

import dataclasses
import json
import pickle
import resource
import subprocess
import sys
import time

MODELS = ["vgg16", "resnet50", "inception_v3", "gpt", "nmt", "resnet1001"]


def measure(name: str) -> None:
    """Capture one model and print a row as JSON."""
    import torch

    from raddle import zoo
    from raddle.graph.capture import capture

    torch.set_num_threads(1)
    work = zoo.load(name)
    start = time.perf_counter()
    graph = capture(work.model, work.batch, work.loss, name=name)
    seconds = time.perf_counter() - start
    stored = dataclasses.replace(graph, recapture=None)  # without the module
    row = {
        "model": name,
        "operators": len(graph.ops),
        "opaque": len(graph.opaque_ops),
        "seconds": round(seconds, 2),
        "graph_mb": round(len(pickle.dumps(stored)) / 2**20, 2),
        "process_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(row))


def main() -> None:
    """Measure each model in a process of its own and print the table."""
    print(
        "| model | operators | opaque | capture, s | graph, MB | process, MB |\n|---|---|---|---|---|---|"
    )
    for name in MODELS:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, name],
            capture_output=True,
            text=True,
            check=True,
        )
        row = json.loads(done.stdout.splitlines()[-1])
        print("| " + " | ".join(str(v) for v in row.values()) + " |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1])
    else:
        main()
