"""Starts the ranks of a verification, as threads or as processes, and sees all of them to their end."""

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
from raddle.transport.orphans import marked
from raddle.transport.thread_transport import Hub
from raddle.verification.comparing import Findings, compare
from raddle.verification.plain import Plain

POLL = 0.1  # seconds
GRACE = 10.0  # seconds between asking ranks to end and killing them
STARTING = 180.0  # seconds for ranks to load and capture the model, on a busy machine

Heard = Callable[[int], None]  # the step that ranks are at


class Failed(Exception):
    """A rank failed while it trained; the sentence says which one and why."""


def on_threads(
    job: Job, plain: Plain, *, steps: int, seed: int, timeout: float, heard: Heard
) -> list[Findings]:
    hub = Hub(job.plan.devices, timeout)
    found: dict[int, Findings] = {}
    errors: dict[int, str] = {}

    def work(rank: int) -> None:
        tell = heard if rank == 0 else lambda step: None
        try:
            found[rank] = compare(job, plain, hub.transport(rank), steps, seed, tell)
        except Exception as error:
            errors[rank] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=work, args=(r,), name=f"rank {r}") for r in range(hub.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise Failed(_first(errors))
    return [found[rank] for rank in range(hub.size)]


def on_processes(
    settings: Mapping[str, Any], plain: Plain, devices: int, *, timeout: float, heard: Heard
) -> list[Findings]:
    """Ranks by torchrun on this machine; they load the plan file themselves."""
    threads = max(1, cores() // devices)
    with tempfile.TemporaryDirectory(prefix="raddle-verify-") as name:
        folder = pathlib.Path(name)
        told = {**settings, "threads": threads, "timeout": timeout}
        write_scratch(folder / "settings.json", told)
        with replace_atomically(folder / "plain.pt", durable=False) as file:
            torch.save(plain, file)
        seconds = STARTING + timeout * (1 + settings["steps"])
        with _torchrun(folder, devices, threads) as process:
            _wait(process, folder, seconds, heard)
        return _answers(folder, devices, process.returncode)


@contextmanager
def _torchrun(
    folder: pathlib.Path, devices: int, threads: int
) -> Iterator[subprocess.Popen[bytes]]:
    """torchrun ends with the body, and so do its ranks."""
    torchrun = [sys.executable, "-m", "raddle.transport.torchrun", "--standalone"]
    ranks = ["--nproc-per-node", str(devices), "-m", "raddle.verification.rank", str(folder)]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*torchrun, *ranks],
            env={**os.environ, "OMP_NUM_THREADS": str(threads), **marked()},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C comes to this process, which ends all of them
        )
    try:
        yield process
    finally:
        process.terminate()  # and torchrun ends its ranks
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        process.kill()
        process.wait()
        for file in folder.glob("rank*.pid"):
            with suppress(OSError, ValueError):  # ended long ago, or still writing its number
                os.kill(int(file.read_text()), signal.SIGKILL)


def _wait(
    process: subprocess.Popen[bytes], folder: pathlib.Path, seconds: float, heard: Heard
) -> None:
    deadline, last = time.monotonic() + seconds, ""
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise Failed(f"the ranks have not ended within {seconds:.0f} s")
        with suppress(OSError):
            now = (folder / "progress").read_text()
            if now.isdigit() and now != last:
                last = now
                heard(int(now))
        time.sleep(POLL)


def _answers(folder: pathlib.Path, devices: int, code: int) -> list[Findings]:
    answers: dict[int, dict[str, Any]] = {}
    for rank in range(devices):
        with suppress(OSError, ValueError):
            answers[rank] = read_scratch(folder / f"rank{rank}.json")
    errors = {rank: a["error"] for rank, a in answers.items() if "error" in a}
    if any("stops: rank" not in text for text in errors.values()):
        raise Failed(_first(errors))
    if len(answers) < devices or errors:
        raise InputError(
            f"the ranks ended early, torchrun with code {code} ({_last_line(folder / 'output')}): "
            "is there too little memory?"
        )
    return [Findings(**answers[rank]) for rank in range(devices)]


def _first(errors: Mapping[int, str]) -> str:
    """Of all that ranks say, what the one says that failed by itself."""
    causes = [r for r, text in sorted(errors.items()) if "stops: rank" not in text]
    rank = (causes or sorted(errors))[0]
    return f"rank {rank} failed: {errors[rank]}"


def _last_line(file: pathlib.Path) -> str:
    lines = [line.strip() for line in file.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line.strip("=-")), "it said nothing")
