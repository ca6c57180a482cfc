"""Starts the ranks of a verification, as threads or as processes, and makes sure that all of them end.

Each rank trains and compares itself with `plain`, the training of the plain module (plain_training.py). Its
*findings* are the deviations and the bytes that it sent (compare_rank.py).
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from raddle.clusters.catalogue import cores
from raddle.errors import InputError
from raddle.files import read_scratch, replace_atomically, write_scratch
from raddle.runtime.job import Job
from raddle.transport.orphans import starter_env
from raddle.transport.thread_transport import Hub
from raddle.verification.compare_rank import Findings, compare
from raddle.verification.plain_training import PlainRun

POLL_SECONDS = 0.1  # time between two checks whether torchrun has ended
GRACE_SECONDS = 10.0  # time between SIGTERM and SIGKILL
# The ranks may take this long to load and capture the model, on a busy machine.
START_SECONDS = 180.0

OnProgress = Callable[[int], None]  # is called with the number of the step that the ranks train now


class RankFailure(Exception):
    """A rank failed while it trained; the message says which one and why."""


def run_on_threads(
    job: Job, plain: PlainRun, *, steps: int, seed: int, timeout: float, on_progress: OnProgress
) -> list[Findings]:
    """Train each rank in a thread of this process; return their findings by rank.

    timeout: seconds that a rank waits for another one. Raises RankFailure.
    """
    hub = Hub(job.plan.devices, timeout)  # connects the threads
    findings: dict[int, Findings] = {}
    errors: dict[int, str] = {}

    def train_rank(rank: int) -> None:
        rank_progress = on_progress if rank == 0 else lambda step: None
        try:
            findings[rank] = compare(job, plain, hub.transport(rank), steps, seed, rank_progress)
        except Exception as error:
            errors[rank] = f"{type(error).__name__}: {error}"

    threads = [
        threading.Thread(target=train_rank, args=(r,), name=f"rank {r}") for r in range(hub.size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise RankFailure(_first_cause(errors))
    return [findings[rank] for rank in range(hub.size)]


def run_on_processes(
    settings: Mapping[str, Any],
    plain: PlainRun,
    devices: int,
    *,
    timeout: float,
    on_progress: OnProgress,
) -> list[Findings]:
    """Train each rank in a process on this machine, started by torchrun; return their findings by rank.

    settings: what rank.py needs to load the job. timeout: seconds that a rank waits for another one.
    Raises RankFailure.
    """
    threads = max(1, cores() // devices)
    with tempfile.TemporaryDirectory(prefix="raddle-verify-") as name:
        folder = pathlib.Path(name)
        rank_settings = {**settings, "threads": threads, "timeout": timeout}
        write_scratch(folder / "settings.json", rank_settings)
        with replace_atomically(folder / "plain.pt", durable=False) as file:  # no fsync
            torch.save(plain, file)
        seconds = START_SECONDS + timeout * (1 + settings["steps"])
        with _torchrun(folder, devices, threads) as process:
            _wait(process, folder, seconds, on_progress)
        return _read_results(folder, devices, process.returncode)


@contextmanager
def _torchrun(
    folder: pathlib.Path, devices: int, threads: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Run torchrun; the end of the `with` block ends torchrun and all ranks."""
    # raddle.transport.torchrun also ends when this process has ended.
    torchrun = [sys.executable, "-m", "raddle.transport.torchrun", "--standalone"]
    ranks = ["--nproc-per-node", str(devices), "-m", "raddle.verification.rank", str(folder)]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*torchrun, *ranks],
            # starter_env: environment variables by which the ranks notice that this process has ended.
            env={**os.environ, "OMP_NUM_THREADS": str(threads), **starter_env()},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, which then ends the ranks
        )
    try:
        yield process
    finally:
        process.terminate()  # torchrun then ends its ranks
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        process.kill()
        process.wait()
        for file in folder.glob("rank*.pid"):
            with suppress(OSError, ValueError):  # the rank has ended, or its file is not complete
                os.kill(int(file.read_text()), signal.SIGKILL)


def _wait(
    process: subprocess.Popen[bytes], folder: pathlib.Path, seconds: float, on_progress: OnProgress
) -> None:
    """Wait until torchrun ends, and report the progress that rank 0 writes to the folder."""
    deadline, last = time.monotonic() + seconds, ""
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise RankFailure(f"the ranks have not ended within {seconds:.0f} s")
        with suppress(OSError):
            now = (folder / "progress").read_text()
            if now.isdigit() and now != last:
                last = now
                on_progress(int(now))
        time.sleep(POLL_SECONDS)


def _read_results(folder: pathlib.Path, devices: int, code: int) -> list[Findings]:
    """Return the findings of all ranks, read from the folder.

    Raises RankFailure if a rank reported an error of its own. code: the exit code of torchrun.
    """
    results: dict[int, dict[str, Any]] = {}
    for rank in range(devices):
        with suppress(OSError, ValueError):
            results[rank] = read_scratch(folder / f"rank{rank}.json")
    errors = {rank: result["error"] for rank, result in results.items() if "error" in result}
    # "stops: rank ...": this rank stopped only because another one has failed.
    if any("stops: rank" not in text for text in errors.values()):
        raise RankFailure(_first_cause(errors))
    if len(results) < devices or errors:
        raise InputError(
            f"the ranks ended early and torchrun with exit code {code} ({_last_line(folder / 'output')}): "
            "check that there is enough memory."
        )
    return [Findings(**results[rank]) for rank in range(devices)]


def _first_cause(errors: Mapping[int, str]) -> str:
    """Return the error of the rank that failed first.

    The other ranks only report that they stop because of that rank ("stops: rank ...").
    """
    causes = [r for r, text in sorted(errors.items()) if "stops: rank" not in text]
    rank = (causes or sorted(errors))[0]
    return f"rank {rank} failed: {errors[rank]}"


def _last_line(file: pathlib.Path) -> str:
    """Return the last line of torchrun's output that is not only a ruler of = or -."""
    lines = [line.strip() for line in file.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line.strip("=-")), "it wrote nothing")
