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
    """Runs a verb of the command line with --json and returns its output; `to`: also saves it."""
    line = [sys.executable, "-m", "raddle", *words, "--json"]
    output = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout
    if to is not None:
        to.write_text(output)
    return json.loads(output)


def main(
    model: str = "alexnet", batch: str = "16", folder: str = "build/demo", budget: str = "10"
) -> None:
    kept = pathlib.Path(folder)
    kept.mkdir(parents=True, exist_ok=True)
    here, page = str(kept / "here.yaml"), str(kept / f"{model}.html")
    raddle("probe", "--ranks", "2", "-o", here)
    print(f"\n{model}, batch {batch}, two processes of this machine")
    print("method              predicted ms   measured ms   samples/s")
    runs: list[str] = []
    for method in ("data", "auto"):
        plan, run = str(kept / f"{method}.json"), kept / f"{method}.run.json"
        row = raddle(
            "plan", model, "--cluster", here, "--batch", batch, "--method", method,
            "--budget", budget, "-o", plan,
        )  # fmt: skip
        trace = str(kept / f"{method}.trace.json.gz")
        ran = raddle("run", plan, "--local", "--steps", "6", "--trace", trace, to=run)
        runs += ["--run", str(run)]
        print(
            f"{method:18} {row['step_ms']:13.0f} {ran['step_ms']:13.0f} {ran['samples_per_s']:11.1f}",
            flush=True,
        )
    raddle("report", *runs, "-o", page)
    print(f"\n{page} shows both, predicted and measured: open it in a browser")


if __name__ == "__main__":
    main(*sys.argv[1:])
