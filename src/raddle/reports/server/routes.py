"""Maps the paths of GET and POST requests to the functions of the server that answer them.

The server is that of `raddle serve`, a page on localhost on which a user starts reports.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from reprlib import repr as short
from typing import Any, NamedTuple

from raddle.errors import InputError
from raddle.files import read_bytes
from raddle.reports.server.child_processes import ChildProcesses
from raddle.reports.server.choices import Choices
from raddle.reports.server.explanations import Explanations
from raddle.reports.server.report_folder import ReportFolder
from raddle.reports.server.report_job import ReportJobs
from raddle.reports.server.report_request import read_request, read_text

HTML = "text/html; charset=utf-8"
# A report may come from somebody else. In a sandbox, its page cannot send requests in the name of the live
# page (the page of `raddle serve` itself).
SANDBOX_POLICY = "sandbox allow-scripts allow-downloads allow-popups; frame-ancestors 'none'"


class PageResponse(NamedTuple):
    """The HTML of a page and its Content-Security-Policy header."""

    body: bytes
    policy: str


class ServerRoutes:
    """The state of the server; `get` and `post` map a path to the function that answers it.

    A function for POST takes the JSON body of the request; all functions return the JSON of the answer.
    """

    def __init__(self, folder: str) -> None:
        self.report_folder = ReportFolder(folder)
        self.key = secrets.token_urlsafe(32)  # every POST must have it (server.py)
        self.children = ChildProcesses()
        self.jobs = ReportJobs(self.report_folder, self.children)
        self.explanations = Explanations(self.report_folder, self.children)
        self.choices = Choices(self.children)
        self.get: dict[str, Callable[[], dict[str, Any]]] = {
            "/api/offer": self._choices,  # the choices of the page: models, clusters, methods
            "/api/state": self._state,
            "/api/reports": lambda: {"reports": self.report_folder.list_reports()},
        }
        self.post: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "/api/start": self._start,
            "/api/stop": self._stop,  # ends the searches early; the report is still written
            "/api/cancel": self._cancel,  # ends the job without a report
            "/api/delete": self._delete,
            "/api/explain": self._explain,
        }

    def page(self, path: str) -> PageResponse | None:
        """Return the live page ("/") or a stored report ("/reports/NAME.html"), else None."""
        if path == "/":
            return PageResponse(self.choices.get()["page"].encode(), "frame-ancestors 'none'")
        name = path.removeprefix("/reports/").removesuffix(".html")
        if path == f"/reports/{name}.html" and self.report_folder.has(name):
            with suppress(InputError):  # the report was deleted after `has` had seen it
                return PageResponse(
                    read_bytes(self.report_folder.page_path(name), "page"), SANDBOX_POLICY
                )
        return None

    def shut_down(self) -> None:
        """End all children, and wait until the last job has removed its unfinished files."""
        self.children.end_all()
        if self.jobs.last is not None:
            self.jobs.last.thread.join()

    def _choices(self) -> dict[str, Any]:
        """Return the choices without "page", the HTML of the live page, and with the folder of reports."""
        choices = {key: value for key, value in self.choices.get().items() if key != "page"}
        return {**choices, "folder": str(self.report_folder.path)}

    def _state(self) -> dict[str, Any]:
        """Return the state of the running or the latest job; None if there was none."""
        last = self.jobs.last
        return {"job": None if last is None else last.snapshot()}

    def _start(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Start the requested report and return the state of its job."""
        choices = self.choices.get()
        request = read_request(body, choices["methods"], choices["searches"])
        return {"job": self.jobs.start(request).snapshot()}

    def _stop(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """End the running searches early and return the state; the report is still written."""
        self.jobs.current().stop()
        return self._state()

    def _cancel(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """End the running job without a report and return the state."""
        self.jobs.current().cancel()
        return self._state()

    def _delete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Delete a report and return the list of the others."""
        self.report_folder.delete(self._existing_report(body))
        return {"reports": self.report_folder.list_reports()}

    def _explain(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the explanation of an operator in a method's plan of a report."""
        method = read_text(body, "method", "name a method of the report.")
        op = read_text(body, "op", "name an operator.")
        return self.explanations.explain(self._existing_report(body), method, op)

    def _existing_report(self, body: Mapping[str, Any]) -> str:
        """Return the name of the report that a request is about; InputError if there is no such report."""
        name = body.get("report")
        if not isinstance(name, str) or not self.report_folder.has(name):
            raise InputError(f"no report {short(name)} is kept: choose one of the list.")
        return name
