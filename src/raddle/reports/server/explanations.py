"""Explains an operator for the page of `raddle serve`, with `raddle explain` in a child process."""

from __future__ import annotations

import subprocess
from threading import Lock
from typing import Any

from raddle.errors import InputError
from raddle.reports.server.child_processes import ChildProcesses, failure_reason, parse_printed_json
from raddle.reports.server.report_folder import ReportFolder

TIMEOUT_SECONDS = 120.0


class Explanations:
    """Answers one request at a time: a new request ends the child of the one before."""

    def __init__(self, report_folder: ReportFolder, children: ChildProcesses) -> None:
        self._report_folder, self._children = report_folder, children
        self._lock = Lock()
        self._child: subprocess.Popen[str] | None = None

    def explain(self, report: str, method: str, op: str) -> dict[str, Any]:
        """Return the output of `raddle explain PLAN OP --json` for a method's plan in a report."""
        plan = self._report_folder.plan_path(report, method)
        with self._lock:
            if self._child is not None:
                self._child.kill()
            child = self._children.start("raddle", "explain", "--json", "--", str(plan), op)
            self._child = child
        try:
            out, err = child.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise InputError(
                f"'{op}' was not explained within {TIMEOUT_SECONDS:g} s: "
                f"`raddle explain {plan} {op}` takes longer."
            ) from None
        finally:
            with self._lock:
                is_latest = self._child is child  # no later request has replaced this child
                if is_latest:
                    self._child = None
            self._children.forget(child)
        if not is_latest:
            raise InputError(f"'{op}' was not explained: another operator was asked for.")
        if child.returncode != 0:
            raise InputError(failure_reason(child.returncode, err.splitlines()))
        return parse_printed_json(out)
