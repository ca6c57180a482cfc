"""Summarises a run, with the prediction next to the measurement, as lines of text or as JSON.

`raddle run` prints the summary at the end, on rank 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, TextIO

from raddle.runtime.job import Job
from raddle.runtime.options import Options
from raddle.runtime.step_times import StepTimes, measured_steps
from raddle.transport.base import GroupsMade

# Kind of collective -> the word for it in a printed row
COLLECTIVE_WORDS = {"all_reduce": "summed", "reduce_scatter": "scattered", "all_gather": "gathered"}


class RankReport(NamedTuple):
    """The numbers that each rank reports at the end of a run."""

    kind: str  # name of its device: "cpu", or that of the GPU
    threads: int
    sent: dict[int, int]  # target rank -> bytes in all steps
    # (kind of collective, ranks that take part) -> bytes of the full buffers in all steps
    collective_bytes: dict[tuple[str, tuple[int, ...]], int]
    # Messages with slices of parameters, and how many of them overtook another one (priority).
    slice_messages: tuple[int, int] = (0, 0)
    groups: GroupsMade = GroupsMade()  # its process groups
    compile_seconds: Sequence[float] = ()  # of each step, spent by torch.compile


def summarise(
    job: Job,
    options: Options,
    times: StepTimes,
    reports: Sequence[RankReport],
) -> dict[str, Any]:
    """Returns the summary, as --json prints it. Bytes are per step; of a collective, those of one buffer.

    job: model, batch, plan and program (job.py); options: of the command line; times: of rank 0; reports:
    of each rank.
    """
    plan, losses, steps = job.plan, times.losses, len(times.losses)
    compile_seconds = [rank.compile_seconds for rank in reports]
    measured = measured_steps(times.seconds, compile_seconds, options.warmup_steps)
    step = median(measured)  # seconds
    batch = plan.batch or sum(job.program.micro_batch_sizes)
    return {
        "plan": options.plan,
        "model": job.workload.name,
        "method": plan.method,
        "batch": batch,
        "devices": plan.devices,
        "device": reports[0].kind,
        "threads": reports[0].threads,
        "dtype": plan.dtype,
        "optimizer": plan.optimizer,
        "steps": steps,
        "warmup": options.warmup_steps,
        "step_ms": 1e3 * step,
        "fastest_ms": 1e3 * min(measured),
        "slowest_ms": 1e3 * max(measured),
        "predicted_ms": plan.predicted.get("step_ms"),
        "cluster": plan.cluster["name"] if plan.cluster else None,
        "samples_per_s": batch / step,
        # the longest time that a rank spent on compiling; no part of the times of steps
        "compile_s": max(sum(seconds) for seconds in compile_seconds),
        "measured": len(measured),  # the number of steps that the times above are of
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "sent": [
            {"source": source, "target": target, "bytes": nbytes // steps}
            for source, rank in enumerate(reports)
            for target, nbytes in sorted(rank.sent.items())
            if nbytes
        ],
        "reduced": [
            {"collective": kind, "devices": list(group), "bytes": nbytes // steps}
            for source, rank in enumerate(reports)
            for (kind, group), nbytes in sorted(rank.collective_bytes.items())
            if nbytes and source == group[0]  # all ranks of a group report it: take the first
        ],
        # The largest numbers of any rank: process groups, and what it took to make them
        "groups": {
            "count": max(rank.groups.count for rank in reports),
            "seconds": max(rank.groups.seconds for rank in reports),
            "bytes": max(rank.groups.nbytes for rank in reports),
        },
        "sync": plan.sync,
        # messages with slices of parameters, per step
        "slices": sum(rank.slice_messages[0] for rank in reports) // steps,
        # messages (of those in "slices") that left before one that was queued earlier, because of priority
        "overtaken": sum(rank.slice_messages[1] for rank in reports) // steps,
        "trace": options.trace,
    }


def show(result: Mapping[str, Any], out: TextIO, *, as_json: bool) -> None:
    """Prints the result of `summarise` to `out`."""
    text = json.dumps(_finite(result), indent=2) if as_json else "\n".join(_lines(result))
    print(text, file=out, flush=True)


def _finite(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result with None (null) for NaN and infinity, which JSON does not have."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in result.items()
    }


def _lines(r: Mapping[str, Any]) -> Iterator[str]:
    """Yields the summary as lines of text. r: the result of `summarise`."""
    method = f", {r['method']}" if r["method"] else ""
    ranks = f"{r['devices']} rank{'s' if r['devices'] > 1 else ''}"
    yield f"{r['model']}, batch {r['batch']}{method} on {ranks} ({r['device']}, {r['dtype']})"
    yield (
        f"measured   {r['step_ms']:.3f} ms a step ({r['fastest_ms']:.3f} to {r['slowest_ms']:.3f}), "
        f"{r['samples_per_s']:.4g} samples/s, median of {r['measured']} steps"
    )
    if r["predicted_ms"] is not None:
        ratio = r["step_ms"] / r["predicted_ms"]
        yield f"predicted  {r['predicted_ms']:.3f} ms on {r['cluster']}: measured is {ratio:.2f}x of it"
    if r["compile_s"]:
        yield f"compiled   in {r['compile_s']:.1f} s, not counted in the times of steps"
    yield f"loss       {r['loss_first']:.6g} -> {r['loss_last']:.6g}"
    if r["groups"]["count"]:
        groups = r["groups"]
        yield (
            f"groups     {groups['count']} process groups a rank, made in {groups['seconds']:.2f} s with "
            f"{groups['bytes'] / 2**20:.0f} MiB"
        )
    for row in r["sent"]:
        yield f"sent       {row['source']} -> {row['target']}  {row['bytes']:,} bytes a step"
    for row in r["reduced"]:
        members = ", ".join(map(str, row["devices"]))
        what = COLLECTIVE_WORDS[row["collective"]]
        yield f"{what:10} over {members}  {row['bytes']:,} bytes of each rank per step"
    if r["slices"]:
        yield (
            f"{r['sync'].partition(':')[0]:10} {r['slices']:,} messages a step with slices of parameters, "
            f"{r['overtaken']:,} of which overtook another"
        )
    if r["trace"] is not None:
        yield f"trace      {r['trace']}: open it at ui.perfetto.dev"
