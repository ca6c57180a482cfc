"""Which plans the evaluator times as their simulation does, to the nanosecond; it refuses others by name.

What is listed here is exact, and anything that a plan may say besides has to be as it is by default: a new
field of a plan, or of a way to synchronise, is refused until the evaluator knows it.
"""

from __future__ import annotations

from dataclasses import MISSING, fields

from raddle.plans.plan import Plan

TIMED_FIELDS = {"tiles", "devices", "bn", "sync", "bucket", "optimizer"}
DESCRIPTIVE_FIELDS = {  # the step takes as long, whatever these say
    "model", "fingerprint", "batch", "dtype", "cluster", "method", "inputs", "parameters", "predicted",
}  # fmt: skip
FIELD_PHRASES = {
    "order": "an order of sums",
    "microbatches": "micro-batches",
    "recompute": "recomputation",
    "split_backward": "a split backward",
    "sums": "sums on named devices",
    "steps": "several steps",
}


def unsupported(plan: Plan) -> str | None:
    """What of a plan the evaluator does not time, in words; None if it times the plan."""
    reasons = []
    for field in fields(plan):
        if field.name in TIMED_FIELDS | DESCRIPTIVE_FIELDS:
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if getattr(plan, field.name) != default:
            reasons.append(FIELD_PHRASES.get(field.name, field.name))
    return " and ".join(reasons) or None
