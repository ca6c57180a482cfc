"""Checks a request of the page of `raddle serve`, and turns it into arguments of `raddle report`.

The arguments are a list and pass through no shell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any

from raddle.errors import InputError, quote

MAX_TEXT = 1000  # characters of a text from the page
MAX_BATCH = 10**9
MAX_BUDGET = 86400.0  # seconds of a search


@dataclass(frozen=True)
class ReportRequest:
    """A checked request for a report: a model, a cluster and the methods to compare."""

    model: str
    cluster: str
    batch: int | None  # None: the model's default
    methods: tuple[str, ...]
    searches: tuple[str, ...]  # the `methods` that search, which can be stopped early
    budget: float  # seconds for each search

    def arguments(self, output: str) -> list[str]:
        """Return the arguments of `raddle`; output: the file of the page.

        Texts of the user stand after `=` or `--`, so that none is taken for an option.
        """
        options = [
            f"--cluster={self.cluster}",
            f"--methods={','.join(self.methods)}",
            f"--budget={self.budget}",
            f"--output={output}",
        ]
        if self.batch is not None:
            options.append(f"--batch={self.batch}")
        return ["report", *options, "--json", "--progress", "--", self.model]


def read_request(
    body: Mapping[str, Any], baselines: Sequence[str], searches: Sequence[str]
) -> ReportRequest:
    """Return the request in the JSON body of a POST; raises InputError if it is not valid.

    baselines, searches: names of the methods that follow a rule, and of those that search.
    """
    methods = _methods(body.get("methods"), [*baselines, *searches])
    return ReportRequest(
        read_text(body, "model", "name a model of the zoo, or file.py:function."),
        read_text(body, "cluster", "name a cluster, as p100:4x4 or local:2, or a YAML file."),
        _batch(body.get("batch")),
        methods,
        tuple(name for name in methods if name in searches),
        _budget(body.get("budget")),
    )


def read_text(body: Mapping[str, Any], key: str, missing: str) -> str:
    """Return the text of a key, one printable line; missing: the error message if there is none."""
    text = body.get(key)
    if not isinstance(text, str) or not text.strip():
        raise InputError(missing)
    if len(text) > MAX_TEXT:
        raise InputError(
            f"the {key} has {len(text)} characters: {MAX_TEXT} is the most, shorten it."
        )
    if not text.isprintable():
        raise InputError(
            f"the {key} {quote(text)} has characters that cannot be printed: leave them out."
        )
    return text.strip()


def _batch(batch: object) -> int | None:
    """Return the checked batch; None: the model's default."""
    if batch is None:
        return None
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= MAX_BATCH:
        raise InputError(f"the batch is {short(batch)}: a whole number from 1, or nothing.")
    return batch


def _budget(budget: object) -> float:
    """Return the checked seconds of a search."""
    if (
        isinstance(budget, bool)
        or not isinstance(budget, int | float)
        or not 0 <= budget <= MAX_BUDGET  # false for NaN too
    ):
        raise InputError(
            f"the time of a search is {short(budget)}: seconds from 0 to {MAX_BUDGET:g}."
        )
    return float(budget)


def _methods(methods: object, available: Sequence[str]) -> tuple[str, ...]:
    """Return the checked names of methods, in the order of `available`."""
    if not isinstance(methods, list) or not methods:
        raise InputError("no method is chosen: choose at least one.")
    for name in methods:
        if name not in available:
            raise InputError(f"no method {short(name)}: choose of {', '.join(available)}.")
    return tuple(name for name in available if name in methods)
