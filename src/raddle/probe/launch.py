"""Runs processes that print their results as lines of JSON, and makes sure that all of them end.

A process ends when it is done, when its time is over, when another one fails, when the user interrupts, and
when the process that started it is killed.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread, Timer
from typing import IO, Any

from raddle.errors import InputError
from raddle.transport.orphans import end_with_parent, starter_env

Message = dict[str, Any]  # a line of JSON; see rank.py
# Entries: (number of the process, line); the line is None when the process has closed its output.
LineQueue = queue.SimpleQueue[tuple[int, str | None]]


def run(
    module: str,
    settings: Sequence[Mapping[str, Any]],
    *,
    threads: int,
    seconds: float,
    on_progress: Callable[[Message], None] = lambda message: None,
) -> list[Message]:
    """Run `python -m module` in a process for each of the settings, all at once; return their results.

    threads: OMP_NUM_THREADS of each process; seconds: time limit; on_progress: is called with each message
    that is no result.
    """
    deadline = time.monotonic() + seconds
    lines: LineQueue = queue.SimpleQueue()
    results: dict[int, Message] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raddle-probe-")))
        for i, setting in enumerate(settings):
            # store: the file by which the ranks find each other (torch.distributed.FileStore).
            arguments = {**setting, "seconds": seconds, "store": str(folder / "store")}
            command = [sys.executable, "-m", module, json.dumps(arguments)]
            process = stack.enter_context(
                _process(command, folder, folder / f"errors{i}", _environment(threads))
            )
            Thread(target=_queue_lines, args=(i, process.stdout, lines), daemon=True).start()
        while len(results) < len(settings):
            try:
                i, line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise InputError(
                    f"the probe did not end within {seconds:.0f} s: "
                    "try again when the machine is less busy, or with fewer ranks."
                ) from None
            message = _message(line)
            if "result" in message:
                results[i] = message["result"]
            elif line is None and i not in results:
                raise InputError(
                    f"process {i} of the probe failed ({_last_line(folder / f'errors{i}')}): "
                    "mend that, or try with fewer ranks."
                )
            elif message:
                on_progress(message)
    return [results[i] for i in range(len(settings))]


def end_in_time(seconds: float) -> None:
    """Make this process end when its parent ends, or after `seconds`."""
    end_with_parent()
    timer = Timer(seconds, os._exit, args=(1,))
    timer.daemon = True
    timer.start()


@contextmanager
def _process(
    command: list[str], folder: Path, errors: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Start a process, whose stderr goes to the file `errors`; it is killed when the `with` block ends."""
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            command,
            cwd=folder,  # has no Python files, so a torch.py of the user is not imported
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,  # Ctrl-C reaches only this process, which then ends the others
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=10)


def _environment(threads: int) -> dict[str, str]:
    """Return the environment of the processes: they import the same raddle, and use only loopback."""
    source = str(Path(__file__).parents[2])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": _loopback(),  # by default gloo uses the address of the host name
        "MASTER_ADDR": "127.0.0.1",  # by default raddle's own sockets listen on all addresses
        **starter_env(),  # variables by which a process notices that its starter has ended
    }


def _loopback() -> str:
    """Return the name of the loopback interface, such as "lo"."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), "lo")


def _queue_lines(i: int, stdout: IO[str], lines: LineQueue) -> None:
    """Put the lines that process i prints into the queue; runs in a thread."""
    with stdout:
        for line in stdout:
            lines.put((i, line))
    lines.put((i, None))


def _message(line: str | None) -> Message:
    """Parse a line; {} if it is no JSON object, such as a line that gloo prints."""
    try:
        message = json.loads(line or "")
    except json.JSONDecodeError:
        return {}
    return message if isinstance(message, dict) else {}


def _last_line(file: Path) -> str:
    """Return the last line of a process's stderr that is not empty."""
    lines = [line.strip() for line in file.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")
