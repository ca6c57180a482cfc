"""What is answered: pages, reports and JSON, by path."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from reprlib import repr as short
from typing import Any, NamedTuple

from raddle.errors import InputError
from raddle.files import read_bytes
from raddle.reports.server.children import Children
from raddle.reports.server.explaining import Explanations
from raddle.reports.server.job import Jobs
from raddle.reports.server.offer import Offer
from raddle.reports.server.shelf import Shelf
from raddle.reports.server.wanted import read_text, read_wanted

HTML = "text/html; charset=utf-8"
# A report that somebody else put into the folder must not speak in the server's name.
ALONE = "sandbox allow-scripts allow-downloads allow-popups; frame-ancestors 'none'"


class Found(NamedTuple):
    """A page."""

    body: bytes
    policy: str


class Answers:
    """All that the server knows; `get` and `post` are by path."""

    def __init__(self, folder: str) -> None:
        self.shelf = Shelf(folder)
        self.key = secrets.token_urlsafe(32)
        self.children = Children()
        self.jobs = Jobs(self.shelf, self.children)
        self.explanations = Explanations(self.shelf, self.children)
        self.offer = Offer(self.children)
        self.get: dict[str, Callable[[], dict[str, Any]]] = {
            "/api/offer": self._offer,
            "/api/state": self._state,
            "/api/reports": lambda: {"reports": self.shelf.reports()},
        }
        self.post: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "/api/start": self._start,
            "/api/stop": self._stop,
            "/api/cancel": self._cancel,
            "/api/delete": self._delete,
            "/api/explain": self._explain,
        }

    def page(self, path: str) -> Found | None:
        """The live page, or a report that is kept, by its exact name."""
        if path == "/":
            return Found(self.offer.get()["page"].encode(), "frame-ancestors 'none'")
        name = path.removeprefix("/reports/").removesuffix(".html")
        if path == f"/reports/{name}.html" and self.shelf.has(name):
            with suppress(InputError):  # deleted in this moment
                return Found(read_bytes(self.shelf.page(name), "page"), ALONE)
        return None

    def end(self) -> None:
        """No child outlives the server, and nothing half done is left in the folder."""
        self.children.end()
        if self.jobs.last is not None:
            self.jobs.last.thread.join()

    def _offer(self) -> dict[str, Any]:
        known = {key: value for key, value in self.offer.get().items() if key != "page"}
        return {**known, "folder": str(self.shelf.folder)}

    def _state(self) -> dict[str, Any]:
        last = self.jobs.last
        return {"job": None if last is None else last.seen()}

    def _start(self, given: Mapping[str, Any]) -> dict[str, Any]:
        known = self.offer.get()
        wanted = read_wanted(given, known["methods"], known["searches"])
        return {"job": self.jobs.start(wanted).seen()}

    def _stop(self, given: Mapping[str, Any]) -> dict[str, Any]:
        self.jobs.current().stop()
        return self._state()

    def _cancel(self, given: Mapping[str, Any]) -> dict[str, Any]:
        self.jobs.current().cancel()
        return self._state()

    def _delete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        self.shelf.delete(self._known(given))
        return {"reports": self.shelf.reports()}

    def _explain(self, given: Mapping[str, Any]) -> dict[str, Any]:
        method = read_text(given, "method", "name a method of the report.")
        op = read_text(given, "op", "name an operator.")
        return self.explanations.explain(self._known(given), method, op)

    def _known(self, given: Mapping[str, Any]) -> str:
        name = given.get("report")
        if not isinstance(name, str) or not self.shelf.has(name):
            raise InputError(f"no report {short(name)} is kept: choose one of the list.")
        return name
