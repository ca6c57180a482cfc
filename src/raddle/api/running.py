"""Trains with a plan; imports only torch and the standard library, so that ranks start fast.

`Options` are the options of a rank's command line, and `parse` reads them. An `UpdateEvent` records that a
parameter server updated a slice of a parameter (raddle.sync).
"""

from __future__ import annotations

from raddle.runtime.host_overhead import measure_host_overhead
from raddle.runtime.job import load_job, optimizer_for
from raddle.runtime.options import Options, parse
from raddle.runtime.trainer import Trainer
from raddle.sync.item import UpdateEvent

__all__ = ["Options", "Trainer", "UpdateEvent", "devices_needed", "measure_host_overhead", "parse"]


def devices_needed(
    plan: str, *, model: str | None, dtype: str | None, precision: str | None = None,
    optimizer: str | None = None, seed: int,
) -> int:  # fmt: skip
    """Return how many devices a plan file needs.

    Raises the errors that every rank would raise, before any rank is started. model, dtype, precision,
    optimizer: None: those of the plan.
    """
    # On the device "meta", weights take no memory.
    job = load_job(
        plan, model=model or "", dtype=dtype or "", precision=precision or "",
        optimizer=optimizer or "", seed=seed, device="meta",
    )  # fmt: skip
    optimizer_for(job.plan.optimizer)
    return job.plan.devices
