"""Plans a model for two processes of this machine with `auto` and with data parallelism, trains both,
and writes a page that shows predicted next to measured steps.

    python examples/fastest.py [MODEL] [BATCH] [FOLDER] [SECONDS OF SEARCH]
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any


def raddle(*words: str, to: pathlib.Path | None = None) -> Any:
    """Runs `raddle WORDS --json` and returns its output as data. to: a file in which it is saved, too."""
    line = [sys.executable, "-m", "raddle", *words, "--json"]
    output = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout
    if to is not None:
        to.write_text(output)
    return json.loads(output)


def main(
    model: str = "alexnet", batch: str = "16", folder: str = "build/demo", budget: str = "10"
) -> None:
    """Plans, runs and reports. batch: samples of a step. budget: seconds of each search."""
    output = pathlib.Path(folder)
    output.mkdir(parents=True, exist_ok=True)
    here, page = str(output / "here.yaml"), str(output / f"{model}.html")
    raddle("probe", "--ranks", "2", "-o", here)  # measures this machine, shared by two processes
    print(f"\n{model}, batch {batch}, two processes of this machine")
    print("method              predicted ms   measured ms   samples/s")
    runs: list[str] = []
    for method in ("data", "auto"):
        plan, run = str(output / f"{method}.json"), output / f"{method}.run.json"
        row = raddle(
            "plan", model, "--cluster", here, "--batch", batch, "--method", method,
            "--budget", budget, "-o", plan,
        )  # fmt: skip
        trace = str(output / f"{method}.trace.json.gz")
        measured = raddle("run", plan, "--local", "--steps", "6", "--trace", trace, to=run)
        runs += ["--run", str(run)]
        print(
            f"{method:18} {row['step_ms']:13.0f} {measured['step_ms']:13.0f} "
            f"{measured['samples_per_s']:11.1f}",
            flush=True,
        )
    raddle("report", *runs, "-o", page)
    print(f"\n{page} shows both, predicted and measured: open it in a browser")


if __name__ == "__main__":
    main(*sys.argv[1:])
