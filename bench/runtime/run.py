"""Compares raddle with DistributedDataParallel and DTensor: two processes, steps in turn, medians.

The cases (modules with a plan and a peer) are in cases.py; each process runs rank.py.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent


def main() -> None:
    """Run the cases on two processes and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "rows.json"
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
        ]
        command += [str(HERE / "rank.py"), chosen.only, str(chosen.rounds), str(out)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        rows = json.loads(out.read_text())
    if chosen.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'case':38} {'peer':8} {'raddle ms':>10} {'peer ms':>9} {'ratio':>7}")
    for r in rows:
        print(
            f"{r['case']:38} {r['peer']:8} {r['raddle_ms']:10.1f} {r['peer_ms']:9.1f} "
            f"{r['ratio']:7.3f}"
        )


if __name__ == "__main__":
    main()
