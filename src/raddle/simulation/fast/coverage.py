"""Which plans the evaluator times as their simulation does, to the nanosecond; it refuses others by name.

What is listed here is exact, and anything that a plan may say besides has to be as it is by default: a new
field of a plan, or of a way to synchronise, is refused until the evaluator knows it.
"""

from __future__ import annotations

from dataclasses import MISSING, fields

from raddle.plans.plan import Plan

TIMED = {"tiles", "devices", "bn", "sync", "bucket", "optimizer"}
DESCRIBED = {  # the step takes as long, whatever these say
    "model", "fingerprint", "batch", "dtype", "cluster", "method", "inputs", "parameters", "predicted",
}  # fmt: skip
NAMED = {
    "order": "an order of sums",
    "microbatches": "micro-batches",
    "recompute": "recomputation",
    "split_backward": "a split backward",
    "sums": "sums on named devices",
    "steps": "several steps",
}


def unsupported(plan: Plan) -> str | None:
    """What of a plan the evaluator does not time, in words; None if it times the plan."""
    found = []
    for field in fields(plan):
        if field.name in TIMED | DESCRIBED:
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if getattr(plan, field.name) != default:
            found.append(NAMED.get(field.name, field.name))
    return " and ".join(found) or None
