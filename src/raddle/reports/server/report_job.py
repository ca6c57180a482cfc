"""Makes a report in a child process, `raddle report ... --progress`, and follows its progress.

The child prints its progress as lines of JSON on stderr, and the report's summary as JSON on stdout.
"""

from __future__ import annotations

import json
import os
import signal
from collections import deque
from contextlib import suppress
from tempfile import TemporaryFile
from threading import Lock, Thread
from time import monotonic
from typing import IO, Any

from raddle.errors import InputError
from raddle.reports.server.child_processes import ChildProcesses, failure_reason, parse_printed_json
from raddle.reports.server.report_folder import ReportFolder
from raddle.reports.server.report_request import ReportRequest

MAX_MESSAGES = 20  # last lines of the child's stderr, without progress, that are remembered


class ReportJob:
    """One report being made: its state is "running", then "done", "failed" or "cancelled"."""

    def __init__(
        self,
        number: int,
        request: ReportRequest,
        report_folder: ReportFolder,
        children: ChildProcesses,
    ) -> None:
        self.request, self.report_folder, self.children = request, report_folder, children
        self.name = report_folder.new_name(request)
        self._started = monotonic()
        self._lock = Lock()
        self._messages = deque[str](maxlen=MAX_MESSAGES)
        self._interrupted = set[str]()  # methods whose search was sent SIGINT
        self._state: dict[str, Any] = {
            "number": number,
            "state": "running",
            "model": request.model,
            "cluster": request.cluster,
            "step": f"capturing {request.model}",  # the child's present activity
            "done": 0,  # units of work of this step that are finished
            "of": 0,  # units of work of this step; 0: unknown
            "stoppable": bool(request.searches),  # a search can end early with its best plan
            # [seconds since the start, best_ms, method], whenever best_ms or the method has changed;
            # best_ms: the step time of the best plan that the method's search has so far
            "history": [],
            "stopping": False,  # the user has asked to end the searches early
            "cancelled": False,
            "error": None,
            "report": None,  # its name in the folder, when it is done
            "lower_bound_ms": None,
            "seconds": 0.0,
        }
        # A file: a pipe could fill up while the thread reads stderr. The thread closes it.
        output: IO[str] = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        arguments = request.arguments(str(report_folder.page_path(self.name)))
        self.child = children.start("raddle", *arguments, output=output)
        self.thread = Thread(target=self._watch, args=(output,), daemon=True)
        self.thread.start()

    @property
    def running(self) -> bool:
        """Whether the report is still being made."""
        return bool(self._state["state"] == "running")

    def snapshot(self) -> dict[str, Any]:
        """Return the state that the page shows."""
        with self._lock:
            seconds = monotonic() - self._started if self.running else self._state["seconds"]
            return {**self._state, "history": list(self._state["history"]), "seconds": seconds}

    def stop(self) -> None:
        """End the searches early with their best plans so far; the report is still written.

        Only a running search handles SIGINT; at any other time SIGINT would end the child. So this only
        sets "stopping", and `_read_line` sends SIGINT once to each search, when the search reports its
        best plan.
        """
        with self._lock:
            if not self.running or not self.request.searches:
                raise InputError(
                    "this report has no search to stop: wait for the report, or cancel it."
                )
            self._state["stopping"] = True

    def cancel(self) -> None:
        """End the job without a report."""
        with self._lock:
            if not self.running:
                raise InputError("nothing is running any more.")
            self._state["cancelled"] = True
            self.child.kill()

    def _watch(self, output: IO[str]) -> None:
        """Follow the child until it has ended; this runs in a thread of its own."""
        assert self.child.stderr is not None
        with self.child.stderr as lines, output:
            for line in lines:
                self._read_line(line.strip())
            self.child.wait()
            self.children.forget(self.child)
            output.seek(0)
            final_state = self._final_state(output.read())
        with self._lock:
            self._state |= {**final_state, "seconds": monotonic() - self._started}

    def _read_line(self, line: str) -> None:
        """Store the progress, or another message, that a line of the child's stderr has."""
        step = _parse_progress(line)
        if step is None:
            if line:
                self._messages.append(line)
            return
        with self._lock:
            method, best = step.get("method"), step.get("best_ms")
            self._state |= {"step": step["step"], "done": step["done"], "of": step["of"]}
            if best is None or method is None:
                return
            history = self._state["history"]
            if not history or history[-1][1:] != [best, method]:
                history.append([monotonic() - self._started, best, method])
            if self._state["stopping"] and method not in self._interrupted:
                self._interrupted.add(method)
                self.child.send_signal(signal.SIGINT)

    def _final_state(self, printed: str) -> dict[str, Any]:
        """Save the report if the child succeeded; return the last changes of the state."""
        code = self.child.returncode
        try:
            if code == 0:
                summary = parse_printed_json(printed)
                self.report_folder.save(self.name, summary)
                return {
                    "state": "done",
                    "report": self.name,
                    "lower_bound_ms": max(
                        (m.get("lower_bound_ms") or 0.0 for m in summary["methods"]), default=0.0
                    ),
                }
            error = self._failure_text(code)
        except Exception as problem:  # after any error the page must learn that the job has ended
            error = (
                f"the report could not be kept ({problem}): "
                f"look at the folder {self.report_folder.path}."
            )
        with suppress(OSError):
            os.unlink(self.report_folder.page_path(self.name))
        return {"state": "cancelled" if self._state["cancelled"] else "failed", "error": error}

    def _failure_text(self, code: int) -> str:
        """Return a sentence that says why there is no report; code: the child's exit code."""
        if self._state["cancelled"]:
            return "it was cancelled, nothing is kept."
        # The exit codes of a process that SIGINT ended outside of a search.
        if self._interrupted and code in (1, 130, -signal.SIGINT):
            return "it was stopped between two searches, nothing is kept: start it again."
        return failure_reason(code, list(self._messages))


def _parse_progress(line: str) -> dict[str, Any] | None:
    """Return the progress in a line of stderr, or None if it is another message.

    A search also reports its "method" and the step time of its best plan, "best_ms".
    """
    if not line.startswith('{"progress"'):
        return None
    try:
        step = json.loads(line)
        return {**step, "done": float(step["done"]), "of": float(step["of"])}
    except (ValueError, KeyError, TypeError):
        return None


class ReportJobs:
    """Runs one job at a time; `last` is the running or the latest one."""

    def __init__(self, report_folder: ReportFolder, children: ChildProcesses) -> None:
        self._report_folder, self._children = report_folder, children
        self._lock = Lock()
        self._number = 0
        self.last: ReportJob | None = None

    def start(self, request: ReportRequest) -> ReportJob:
        """Start a job and return it; raises ServerBusy while another job is running."""
        with self._lock:
            if self.last is not None and self.last.running:
                running = self.last.request
                raise ServerBusy(
                    f"{running.model} on {running.cluster} is running: wait for it, stop it or cancel it."
                )
            self._number += 1
            self.last = ReportJob(self._number, request, self._report_folder, self._children)
            return self.last

    def current(self) -> ReportJob:
        """Return the running or the latest job; InputError if there was none."""
        if self.last is None:
            raise InputError("nothing is running.")
        return self.last


class ServerBusy(InputError):
    """Raised for a start while another job is running."""
