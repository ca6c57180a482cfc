"""Stores the reports of `raddle serve` in a folder; the server reads, writes and deletes no other files.

NAME.html           the page, which also opens without the server
NAME.json           its summary, as `raddle report --json` prints it; written last
NAME/METHOD.json    its plans
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from raddle.errors import InputError, quote
from raddle.files import Fields, read_json, write_atomically
from raddle.reports.server.file_names import is_name, report_name, safe_name
from raddle.reports.server.page_file import read_page
from raddle.reports.server.report_request import ReportRequest


class ReportFolder:
    """Stores reports by name. A report exists once its NAME.json is written."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder).resolve()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"'{folder}' cannot be a folder ({error.strerror}): name another with --folder."
            ) from None

    def new_name(self, request: ReportRequest) -> str:
        """Return an unused name for a report."""
        base = report_name(request.model, request.cluster, request.batch, datetime.now())
        name, number = base, 1
        while any(path.exists() for path in self._paths(name)):
            number += 1
            name = f"{base}-{number}"
        return name

    def page_path(self, name: str) -> Path:
        """Return the path of a report's page, which need not exist yet."""
        return self._paths(name)[0]

    def save(self, name: str, summary: Mapping[str, Any]) -> None:
        """Write the plans of a page that is written already, and its summary."""
        page, summary_path, plans = self._paths(name)
        plans.mkdir(exist_ok=True)
        for method in read_page(page)["methods"]:
            if method.get("plan"):
                path = plans / f"{safe_name(method['label'])}.json"
                write_atomically(path, json.dumps(method["plan"], indent=1))
        write_atomically(summary_path, json.dumps(summary, indent=2))

    def list_reports(self) -> list[dict[str, Any]]:
        """Return a row for each report, the newest first."""
        names = [path.stem for path in self.path.glob("*.json") if self.has(path.stem)]
        rows = [row for row in map(self._row, names) if row is not None]
        return sorted(rows, key=lambda row: (row["time"], row["name"]), reverse=True)

    def has(self, name: object) -> bool:
        """Return whether there is a report of this name: both files, neither of them a symbolic link."""
        if not isinstance(name, str) or not is_name(name):
            return False
        return all(p.is_file() and not p.is_symlink() for p in self._paths(name)[:2])

    def plan_path(self, name: str, method: str) -> Path:
        """Return the path of a method's plan in a report."""
        path = self._paths(name)[2] / f"{safe_name(method)}.json"
        if not self.has(name) or not path.is_file() or path.is_symlink():
            raise InputError(f"no plan of '{method}' is kept with '{name}': show another report.")
        return path

    def delete(self, name: str) -> None:
        """Delete a report and its plans."""
        page, summary_path, plans = self._paths(name)
        for path in (summary_path, page):  # the summary first: without it the report does not exist
            path.unlink(missing_ok=True)
        if plans.is_dir() and not plans.is_symlink():
            for path in plans.glob("*.json"):
                path.unlink()
            if not any(plans.iterdir()):
                plans.rmdir()

    def _paths(self, name: str) -> tuple[Path, Path, Path]:
        """Return the paths of a report's page, its summary and its folder of plans."""
        if not is_name(name):
            raise InputError(f"'{name}' is no name of a report: letters, digits, '.', '_' and '-'.")
        return self.path / f"{name}.html", self.path / f"{name}.json", self.path / name

    def _row(self, name: str) -> dict[str, Any] | None:
        """Return the row of a report in the list; None if its NAME.json is not a summary.

        `Fields` raises InputError if a key is missing or its value has a wrong type.
        """
        path = self._paths(name)[1]
        try:
            summary = Fields.from_data(read_json(path, "summary"), quote(path))
            rows = [Fields.from_data(row, quote(path)) for row in summary.list("methods")]
            best = next(row for row in rows if row.data.get("label") == summary.text("best"))
            return {
                "name": name,
                "model": summary.text("model"),
                "cluster": summary.text("cluster"),
                "batch": summary.count("batch"),
                "best": summary.text("best"),
                "step_ms": best.number("step_ms"),
                "speedup": None if best.data.get("speedup") is None else best.number("speedup"),
                "time": path.stat().st_mtime,
            }
        except (OSError, InputError, StopIteration):
            return None
