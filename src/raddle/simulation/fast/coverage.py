"""Decides which plans the evaluator (evaluator.py) supports, that is, times as the full simulation does.

The evaluator supports any value of the fields in TIMED_FIELDS and DESCRIPTIVE_FIELDS. All other fields of a
plan need their default value, so a new field is unsupported until it is listed here.
"""

from __future__ import annotations

from dataclasses import MISSING, fields

from raddle.plans.plan import Plan

# Fields that change the time of a step.
TIMED_FIELDS = {"tiles", "devices", "bn", "sync", "bucket", "optimizer", "precision"}
DESCRIPTIVE_FIELDS = {  # they do not change the time of a step
    "model", "fingerprint", "batch", "dtype", "dropout", "cluster", "method", "inputs", "parameters",
    "predicted",
}  # fmt: skip
FIELD_PHRASES = {  # unsupported fields in words, for errors; see plans/plan.py
    "order": "a fixed order of all-reduces",
    "microbatches": "micro-batches",
    "recompute": "recomputation",
    "split_backward": "a split backward",
    "sums": "partial results that are summed on chosen devices",
    "steps": "several steps",
}


def unsupported(plan: Plan) -> str | None:
    """Returns in words the parts of a plan that the evaluator does not support; None if it supports all."""
    reasons = []
    for field in fields(plan):
        if field.name in TIMED_FIELDS | DESCRIPTIVE_FIELDS:
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if getattr(plan, field.name) != default:
            reasons.append(FIELD_PHRASES.get(field.name, field.name))
    return " and ".join(reasons) or None
