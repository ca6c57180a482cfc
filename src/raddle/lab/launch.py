"""Runs a command on every host of a lab, and makes sure that all of them end.

A lab is a set of emulated hosts on this machine. The commands end when they are done, when one of them
fails, when the time is over, and when the user interrupts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from raddle.lab.hosts import Hosts
from raddle.lab.names import INTERFACE
from raddle.lab.processes import (
    GRACE_SECONDS,
    POLL_SECONDS,
    block_interrupts,
    end_processes,
    processes_in,
)
from raddle.transport.orphans import starter_env

# Seconds to wait after the first failure. If a rank dies, other hosts may fail before torchrun reports it
# on the host of this rank, whose output has the cause.
CAUSE_SECONDS = 1.5
MAX_TAIL = 8_000  # characters at the end of a host's output that an error message quotes
# An environment variable that identifies all processes of a launch: the ranks of torchrun leave its process
# group, but inherit the variable.
LAUNCH_VARIABLE = "RADDLE_LAUNCH"

Processes = list[subprocess.Popen[Any]]


class LaunchError(RuntimeError):
    """A command failed, or did not end in time.

    codes: host -> exit code, for the hosts whose command ended by itself.
    """

    def __init__(self, message: str, codes: Mapping[int, int], *, timed_out: bool) -> None:
        super().__init__(message)
        self.codes = dict(codes)
        self.timed_out = timed_out


def launch(
    lab: Hosts,
    argv_for_host: Callable[[int], Sequence[str]],
    timeout: float,
    *,
    env: Mapping[str, str] | None = None,
    show: bool = False,
) -> list[str]:
    """Run a command on every host at once; return the output of each host.

    argv_for_host: returns the command for the host with this number. timeout: seconds for all together.
    show: print the output of host 0 directly, instead of returning it. Raises LaunchError.
    """
    token = uuid.uuid4().hex
    hosts = range(len(lab.addresses))
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in hosts]
        processes: Processes = []
        try:
            for host, file in enumerate(files):
                output = None if show and host == 0 else file
                environment = _environment(token, env or {})
                processes.append(_start(lab, host, argv_for_host(host), output, environment))
            _wait(processes, timeout)
            codes = {i: p.returncode for i, p in enumerate(processes) if p.returncode is not None}
        finally:
            with block_interrupts():
                _end_all(lab, processes, token)
        outputs = [_text(file) for file in files]
    if any(codes.get(host) != 0 for host in hosts):
        raise _error(codes, outputs, timeout)
    return outputs


def _environment(token: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the commands; `token` identifies the launch."""
    sockets = {"GLOO_SOCKET_IFNAME": INTERFACE, "TP_SOCKET_IFNAME": INTERFACE}
    # A lab has no host names, and torch would log a warning about this at each connection.
    quiet = {"TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")}
    return {
        **os.environ,
        **sockets,
        **quiet,
        "OMP_NUM_THREADS": "1",
        LAUNCH_VARIABLE: token,
        **starter_env(),  # variables by which a process notices that its starter has ended
        **extra,
    }


def _start(
    lab: Hosts, host: int, argv: Sequence[str], output: IO[str] | None, environment: dict[str, str]
) -> subprocess.Popen[Any]:
    """Start a command on a host; output: the file for what it prints, None: this process's stdout."""
    return lab.exec(
        host,
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        env=environment,
        start_new_session=True,  # Ctrl-C reaches only this process, which then ends the others
    )


def _wait(processes: Processes, timeout: float) -> None:
    """Return when all processes have ended, soon after one has failed, or when the time is over."""
    deadline = time.monotonic() + timeout
    failed = False
    while None in (codes := [p.poll() for p in processes]) and time.monotonic() < deadline:
        if not failed and any(codes):
            failed, deadline = True, min(deadline, time.monotonic() + CAUSE_SECONDS)
        time.sleep(POLL_SECONDS)


def _end_all(lab: Hosts, processes: Processes, token: str) -> None:
    """End the process groups that still run; then the processes of this launch that left their group."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        running = [p for p in processes if p.poll() is None]
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal_number)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(p.poll() is None for p in running) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    end_processes(lambda: {pid for pid in processes_in(lab.namespaces) if _is_marked(pid, token)})


def _is_marked(pid: int, token: str) -> bool:
    """Return whether a process belongs to the launch with this token."""
    with suppress(OSError):  # the process has just ended
        return f"{LAUNCH_VARIABLE}={token}".encode() in Path(
            f"/proc/{pid}/environ"
        ).read_bytes().split(b"\0")
    return False


def _text(file: IO[str]) -> str:
    """Return all that was written to a file."""
    file.seek(0)
    return file.read()


def _error(codes: Mapping[int, int], outputs: Sequence[str], timeout: float) -> LaunchError:
    """Return an error that names the hosts that failed or were too slow, with the end of their output."""
    failed = {host: code for host, code in codes.items() if code != 0}
    unfinished = [host for host in range(len(outputs)) if host not in codes]
    if failed:
        message = ", ".join(f"host {host} failed with code {code}" for host, code in failed.items())
        message += f"; ended with it: {_list(unfinished)}." if unfinished else "."
    else:
        message = f"not done after {timeout:g} s, and ended: {_list(unfinished)}; allow more time."
    tails = [
        f"\n--- host {host}\n{outputs[host][-MAX_TAIL:].rstrip()}"
        for host in failed or unfinished
        if outputs[host]
    ]
    return LaunchError("".join([message, *tails]), codes, timed_out=not failed)


def _list(hosts: Sequence[int]) -> str:
    """Return host numbers as text: [0, 2] -> "host 0, host 2"."""
    return ", ".join(f"host {host}" for host in hosts)
