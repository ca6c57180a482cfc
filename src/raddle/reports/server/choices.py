"""Loads the choices of the live page (models, clusters, methods) and the HTML of this page.

The live page is the page of `raddle serve` itself, on which a user starts reports. A child process
collects its choices, because that needs torch, which the server does not import.
"""

from __future__ import annotations

import json
from threading import Thread
from typing import Any

from raddle.errors import InputError
from raddle.reports.server.child_processes import ChildProcesses, failure_reason

CHOICES_MODULE = "raddle.api.live_page"  # prints the choices as JSON


class Choices:
    """The choices of the live page: a child collects them while the server starts; `get` waits for it."""

    def __init__(self, children: ChildProcesses) -> None:
        self._choices: dict[str, Any] = {}
        self._error = ""
        self._children = children
        self._thread = Thread(target=self._load, daemon=True)
        self._thread.start()

    def get(self) -> dict[str, Any]:
        """Return the choices, with the keys of `raddle.api.live_page.live_page_data`."""
        self._thread.join()
        if self._error:
            raise InputError(self._error)
        return self._choices

    def _load(self) -> None:
        """Run the child and store its choices, or the error; this runs in a thread of its own."""
        try:
            child = self._children.start(CHOICES_MODULE)
            out, err = child.communicate()
            self._children.forget(child)
            if child.returncode == 0:
                self._choices = json.loads(out)
            else:
                why = failure_reason(child.returncode, err.splitlines())
                self._error = (
                    f"the models, clusters and methods to choose from could not be listed: {why}"
                )
        except (InputError, OSError) as error:
            self._error = str(error)
