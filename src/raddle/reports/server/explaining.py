"""Other splits of an operator, on demand: `raddle explain` in a child; of several questions the last."""

from __future__ import annotations

import subprocess
from threading import Lock
from typing import Any

from raddle.errors import InputError
from raddle.reports.server.children import Children, printed_json, sentence
from raddle.reports.server.shelf import Shelf

SECONDS = 120.0


class Explanations:
    """Who asks about another operator has no use for the last answer: its child is ended."""

    def __init__(self, shelf: Shelf, children: Children) -> None:
        self._shelf, self._children = shelf, children
        self._lock = Lock()
        self._asked: subprocess.Popen[str] | None = None

    def explain(self, report: str, method: str, op: str) -> dict[str, Any]:
        """What `raddle explain PLAN OP --json` prints."""
        plan = self._shelf.plan(report, method)
        with self._lock:
            if self._asked is not None:
                self._asked.kill()
            child = self._children.start("raddle", "explain", "--json", "--", str(plan), op)
            self._asked = child
        try:
            out, err = child.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise InputError(
                f"'{op}' was not explained within {SECONDS:g} s: `raddle explain {plan} {op}` takes longer."
            ) from None
        finally:
            with self._lock:
                last = self._asked is child
                if last:
                    self._asked = None
            self._children.done(child)
        if not last:
            raise InputError(f"'{op}' was not explained: another operator was asked for.")
        if child.returncode != 0:
            raise InputError(sentence(child.returncode, err.splitlines()))
        return printed_json(out)
