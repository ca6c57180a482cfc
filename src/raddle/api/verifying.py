"""Verifies a plan: trains with it and with the plain module, and compares numbers and bytes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from raddle.api.loading import why_unbound
from raddle.api.plan_result import PlanResult
from raddle.api.planning import ignore_progress
from raddle.errors import InputError
from raddle.reports.terminal import text_of
from raddle.reports.verification import show_verdict
from raddle.searches.settings import OnProgress
from raddle.verification.verify_plan import TOLERANCE, verify_workload
from raddle.verification.verify_plan import verify as verify_file

__all__ = ["Verdict", "verify"]


class Verdict(dict[str, Any]):
    """The checks of a verification: data, which print as the table of `raddle verify`."""

    @property
    def holds(self) -> bool:
        """Whether all checks hold."""
        return bool(self["holds"])

    def __repr__(self) -> str:
        return text_of(show_verdict, self)


def verify(
    plan: PlanResult | str | os.PathLike[str],
    *,
    steps: int = 3,
    threads: bool = False,
    tolerance: float = TOLERANCE,
    model: str = "",
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Verdict:
    """Trains with a plan and with the plain module, and compares losses, gradients, parameters and bytes.

    plan: a result, or the path of a plan file. All numbers are compared in float64.
    steps: how many steps to train. tolerance: the largest relative deviation that counts as equal.
    threads: run the ranks as threads of this process, instead of as processes. For a module of this process
        they are always threads, as other processes do not have it.
    model: the name of the model, for a plan file that names none.
    seed: of the weights, the batch and the dropout masks.

    >>> import raddle
    >>> result = raddle.plan("mlp-tiny", 8, cluster="local:2", method="data")
    >>> raddle.verify(result, steps=1, threads=True).holds
    True
    """
    options: dict[str, Any] = {
        "steps": steps, "threads": threads, "tolerance": tolerance, "seed": seed,
        "on_progress": on_progress or ignore_progress,
    }  # fmt: skip
    if not isinstance(plan, PlanResult):
        return Verdict(verify_file(os.fspath(plan), model=model, **options))
    if model:
        raise InputError("a result knows its model: leave out model, which is for plan files.")
    bound = plan.bound
    if bound.workload is not None:  # a module of this process: only its threads have it
        del options["threads"]
        return Verdict(verify_workload(bound.workload, bound.graph, bound.plan, **options))
    if why_unbound(bound.plan.model):
        raise InputError(
            f"only the graph of '{bound.plan.model}' was given, which trains nothing: plan with the "
            "module, as raddle.plan(model, batch, loss, cluster=...), and verify that."
        )
    with tempfile.TemporaryDirectory(prefix="raddle-verify-") as folder:
        path = Path(folder) / "plan.json"
        plan.save(path)
        return Verdict(verify_file(str(path), **options))
