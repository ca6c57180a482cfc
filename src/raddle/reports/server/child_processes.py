"""Starts child processes for the server of `raddle serve`, and ends them when the server ends."""

from __future__ import annotations

import json
import subprocess
import sys
from threading import Lock
from typing import IO, Any

from raddle.errors import InputError

GRACE_SECONDS = 3.0  # between SIGTERM and SIGKILL


class ChildProcesses:
    """The running child processes of the server."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._closed = False

    def start(
        self, module: str, *arguments: str, output: IO[str] | int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Start `python -m MODULE ARGUMENTS`; output: where its stdout goes."""
        with self._lock:
            if self._closed:
                raise InputError("the server is ending: start it again.")
            child = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # a Ctrl-C in the terminal is the server's to handle
            )
            self._running.add(child)
        return child

    def forget(self, child: subprocess.Popen[str]) -> None:
        """Remove a child that has ended and was waited for."""
        with self._lock:
            self._running.discard(child)

    def end_all(self) -> None:
        """End all children, and refuse to start others."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for child in running:
            child.terminate()
        for child in running:
            try:
                child.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def failure_reason(code: int, messages: list[str]) -> str:
    """Return a sentence that says why a child failed.

    code: its exit code, negative for a signal; messages: the lines on its stderr.
    """
    errors = [line.removeprefix("raddle: ") for line in messages if line.startswith("raddle: ")]
    if code == 2 and errors:  # 2: an InputError, printed as one sentence (cli/main.py)
        return errors[-1]
    if code < 0:
        return f"its process was ended by signal {-code}: if that was for memory, take a smaller batch."
    return f"it ended with code {code}: {messages[-1] if messages else 'it printed no message.'}"


def parse_printed_json(text: str) -> dict[str, Any]:
    """Return the JSON object at the end of the output of a sub-command of raddle with --json.

    A model file of the user may have printed something before it.
    """
    result: dict[str, Any] = json.loads(text[text.rfind("\n{\n") + 1 :])
    return result
