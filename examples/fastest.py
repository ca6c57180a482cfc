"""Plans a model for two processes of this machine, and trains by what `auto` finds and by plain data
parallelism: predicted beside measured.

    python examples/fastest.py [MODEL] [BATCH]
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any


def raddle(*words: str) -> Any:
    """What a verb says with --json."""
    line = [sys.executable, "-m", "raddle", *words, "--json"]
    return json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main(model: str = "alexnet", batch: str = "16") -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = str(pathlib.Path(folder) / "here.yaml")
        raddle("probe", "--ranks", "2", "-o", here)
        print(f"\n{model}, batch {batch}, two processes of this machine")
        print("method              predicted ms   measured ms   samples/s")
        for method in ("data", "auto"):
            plan = str(pathlib.Path(folder) / f"{method}.json")
            row = raddle(
                "plan", model, "--cluster", here, "--batch", batch, "--method", method,
                "--budget", "10", "-o", plan,
            )  # fmt: skip
            ran = raddle("run", plan, "--local", "--steps", "10")
            print(
                f"{method:18} {row['step_ms']:13.0f} {ran['step_ms']:13.0f} "
                f"{ran['samples_per_s']:11.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
