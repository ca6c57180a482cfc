"""Measures seconds to start: import, `raddle --help` and a cluster of 1,024 devices; see README.md."""

from __future__ import annotations

import subprocess
import sys
from statistics import median
from time import perf_counter

TIMES = 7  # runs of each; the median counts
# Scripts that measure themselves in a fresh interpreter and print the seconds.
CLUSTER = """
from time import perf_counter
from raddle.clusters import cluster
begun = perf_counter()
c = cluster("h100:1024")
for source in range(1023):
    c.route(source, source + 1)
print(perf_counter() - begun)
"""
IMPORT = """
from time import perf_counter
begun = perf_counter()
import raddle
print(perf_counter() - begun)
"""


def inside(script: str) -> float:
    """Return the seconds that a script in a fresh interpreter has measured."""
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout)


def outside(*words: str) -> float:
    """Return the seconds of a whole process; words: the arguments of Python."""
    begun = perf_counter()
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
    return perf_counter() - begun


def main() -> None:
    """Print the median and the range of each, and whether the median is within its limit in seconds."""
    for what, limit, seconds in (
        ("import raddle", 0.3, lambda: inside(IMPORT)),
        ("raddle --help", 1.0, lambda: outside("-m", "raddle", "--help")),
        ("1,024 devices and 1,023 routes", 0.25, lambda: inside(CLUSTER)),
    ):
        taken = sorted(seconds() for _ in range(TIMES))
        middle = median(taken)
        print(
            f"{what:32} {middle:6.3f} s ({taken[0]:.3f} to {taken[-1]:.3f})   "
            f"{'within' if middle < limit else 'OVER'} {limit} s"
        )


if __name__ == "__main__":
    main()
