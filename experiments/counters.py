"""Samples the byte counters of a lab host's network interface while ranks train.

As a script it runs inside the host and needs only the standard library (-I -S skip other packages, for a
quick start). `python -I -S counters.py lab0 FILE` writes a line every 5 ms (lab0 is the interface's name):
time.perf_counter() (the same clock in all processes), bytes sent so far, bytes received so far.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raddle.api.lab import Lab

PERIOD = 0.005  # seconds
Sample = tuple[float, int, int]  # seconds, bytes sent and received so far


@contextmanager
def sample_counters(lab: Lab, host: int, file: Path) -> Iterator[None]:
    """Samples the counters of a host (its number) into `file` during the `with` block.

    `read_samples` reads the file.
    """
    from raddle.api.lab import INTERFACE

    argv = [sys.executable, "-I", "-S", __file__, INTERFACE, str(file)]
    process = lab.exec(host, argv)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def read_samples(file: Path) -> list[Sample]:
    """Returns the samples in a file. The last line may be incomplete and is left out."""
    lines = file.read_text().split("\n")[:-1]
    rows = [line.split() for line in lines]
    return [(float(t), int(sent), int(received)) for t, sent, received in rows]


def rates_by_slot(
    samples: Sequence[Sample], begin: float, end: float, slot: float
) -> list[tuple[float, float, float]]:
    """Returns the average rates in time slots of `slot` seconds between `begin` and `end`.

    begin, end: seconds by the clock of the samples. An entry is (seconds from `begin` to the middle of the
    slot, bytes/s sent, bytes/s received).
    """
    import numpy as np

    count = int((end - begin) / slot + 1e-9)
    borders = begin + slot * np.arange(count + 1)
    times = [t for t, _, _ in samples]
    # for each slot, in bytes/s
    sent, received = (
        np.diff(np.interp(borders, times, [s[i] for s in samples])) / slot for i in (1, 2)
    )
    return [((k + 0.5) * slot, float(sent[k]), float(received[k])) for k in range(count)]


def main(interface: str, path: str) -> None:
    """Writes samples into the file `path`, line by line, until the process is terminated."""
    folder = Path("/sys/class/net") / interface / "statistics"
    with open(path, "w", buffering=1, encoding="utf-8") as out:
        while True:
            now = time.perf_counter()
            sent, received = (
                (folder / f"{direction}_bytes").read_text().strip() for direction in ("tx", "rx")
            )
            out.write(f"{now:.6f} {sent} {received}\n")
            time.sleep(PERIOD)


if __name__ == "__main__":
    main(*sys.argv[1:])
