"""Reads and checks the arguments of `sync.Optimizer`, and finds out whether a barrier is needed.

A barrier means that all gradients of a step are summed before any parameter is updated. Properties of a
`Sync` (plans/sync/sync_kind.py): zero3, parameters are sharded too (`sharded:parameters`); server, the one
rank that updates all parameters, if the user names it; bucketed, gradients are all-reduced in buckets
(`allreduce`); synchronous, its staleness is 0.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from raddle.errors import InputError
from raddle.plans.sync import Sync, check_wire_dtype, read_sync
from raddle.sync.slice_updater import why_barrier
from raddle.sync.trained_parameters import TrainedParameters


@dataclass(frozen=True)
class SyncSettings:
    """The checked arguments. `sync.Optimizer` documents them."""

    sync_text: str  # the sync kind as the user wrote it
    sync: Sync
    backward_passes: int  # calls of backward in a step
    bucket: int  # the most bytes of gradients in one all-reduce
    debug: bool  # all ranks compare what they are about to sum
    stall: float  # seconds of waiting until a warning

    def to_compare(self, barrier_reason: str) -> dict[str, Any]:
        """Returns the settings that must be the same on all ranks."""
        return {"sync": self.sync_text, "barrier": barrier_reason, "backward_passes": self.backward_passes,
                "bucket": self.bucket, "debug": self.debug}  # fmt: skip


def read_settings(
    sync_text: str,
    size: int,
    *,
    backward_passes: int,
    bucket: int,
    debug: bool | None,
    stall: float,
) -> SyncSettings:
    """Returns the checked arguments for `size` ranks. If `debug` is None, RADDLE_SYNC_DEBUG decides."""
    sync = check_sync(read_sync(sync_text), size)
    if backward_passes < 1:
        raise ValueError(f"backward_passes is {backward_passes}: a step needs 1 or more")
    if debug is None:
        debug = os.environ.get("RADDLE_SYNC_DEBUG", "") not in ("", "0")
    return SyncSettings(sync_text, sync, backward_passes, bucket, debug, stall)


def check_sync(sync: Sync, size: int) -> Sync:
    """Returns the sync kind; raises InputError if a wrapped optimizer cannot use it on `size` ranks."""
    if sync.zero3:
        raise InputError(
            "sync is 'sharded:parameters', and a module needs its parameters whole: use sharded, or a "
            "plan (raddle plan --sync sharded:parameters)."
        )
    if sync.group_size:
        raise InputError(
            f"sync has the option 'group={sync.group_size}', and a wrapped optimizer shards among all "
            f"ranks: use sharded, or a plan (raddle plan --sync sharded,group={sync.group_size})."
        )
    if sync.after_backward:
        raise InputError(
            "sync has the option 'after', and a wrapped optimizer sends gradients during the backward: "
            "leave it out, or use a plan (raddle plan --sync allreduce:after)."
        )
    if sync.server is not None and sync.server >= size:
        raise InputError(
            f"sync names rank {sync.server} and there are {size}: choose from 0 to {size - 1}"
        )
    return sync


def find_barrier_reason(
    trained: TrainedParameters, settings: SyncSettings, *, requested: bool
) -> str:
    """Returns why a barrier is needed; empty if there is no reason so far.

    Raises InputError if the sync kind cannot have a barrier, or if the dtype to which it compresses
    gradients (wire dtype) does not fit a parameter.
    requested: whether the user passed barrier=True.
    """
    named = dict(zip(trained.names, trained.parameters, strict=True))
    check_wire_dtype(settings.sync_text, {name: p.dtype for name, p in named.items()})
    reason = "barrier=True" if requested else why_barrier(trained.optimizer) or ""
    if not reason and not settings.sync.bucketed:  # then parameters are sent in slices
        reason = next(
            (_why_unsliceable(name, p) for name, p in named.items() if _why_unsliceable(name, p)),
            "",
        )
    if reason and not settings.sync.synchronous:
        raise InputError(
            f"sync '{settings.sync_text}' cannot wait until all gradients are summed, as is needed here "
            f"({reason.rstrip('.')}): use ps or p3."
        )
    return reason


def _why_unsliceable(name: str, p: Any) -> str:
    """Returns why a parameter cannot be sent in slices; empty if it can."""
    if p.is_contiguous() and not p.is_complex():
        return ""
    what = "complex" if p.is_complex() else "not contiguous (channels_last?)"
    return f"'{name}' is {what} and cannot be sent in slices"
