"""Verifies a plan file (`raddle verify`), or a plan for a module of this process.

Two properties are checked by training a few steps on the runtime:
1. losses, gradients, parameters and buffers are equal to those of serial training with plain PyTorch;
2. the ranks send as many bytes as the program says and the simulator counts.

A *job* (runtime/job.py) is all that a rank needs to train: model, loss, batch, plan and program. Its
*twin* (twin.py) is the same job in float64. The *findings* of a rank are its deviations and the bytes that
it sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from raddle.clusters.catalogue import memory
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.pipelining import is_asynchronous, schedule_of
from raddle.plans.plan import Plan
from raddle.plans.precision import DEFAULT
from raddle.program.program import Program
from raddle.runtime.job import Job
from raddle.runtime.schedule_spans import Span, early_starts
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.timeline import Timeline
from raddle.verification import launch, traffic
from raddle.verification.compare_rank import Findings
from raddle.verification.local_statistics import has_serial_reference
from raddle.verification.plain_training import PlainRun, train_plain
from raddle.verification.twin import Twin, explain_casts, load_twin, make_twin
from raddle.zoo.loading import default_dtype
from raddle.zoo.workload import Workload

TOLERANCE = 1e-9  # largest relative deviation that counts as equal
# Names of checks in the result.
TOTAL_BYTES = "bytes in all: program = simulator"
TOO_EARLY = "schedule: seconds too early"
# A rank waits for another one for 60 seconds, or 20 times as long as the slowest step of the plain module
# if that is longer.
MIN_TIMEOUT = 60.0
TIMEOUT_FACTOR = 20

# Is called with {"step": the present part, "done": number of finished parts, "of": number of all parts}.
OnProgress = Callable[[Mapping[str, Any]], None]
# Is called with the present part and the number of finished parts.
Report = Callable[[str, int], None]


def verify(
    path: str,
    *,
    steps: int = 3,
    threads: bool = False,
    tolerance: float = TOLERANCE,
    model: str = "",
    seed: int = 0,
    on_progress: OnProgress = lambda step: None,
) -> dict[str, Any]:
    """Train with a plan file and with plain PyTorch from the same weights, and return the comparison.

    path: a plan file. threads: run the ranks as threads of this process instead of as processes. model: the
    model, for plans that name none. seed: the seed of the weights, the batch and the dropout masks.
    Both trainings compute in float64: casts inside the model to other floating-point types give float64.
    So the tolerance is valid for models of any precision. `casts` of the result counts these casts by type.
    Deviations are relative: for the loss to itself, for gradients to the norm of all gradients, for
    parameters and buffers to their largest element (or 1). Raises InputError if the plan cannot be verified
    on this machine.
    """

    def make(bn: str) -> Twin:
        return load_twin(path, model=model, bn=bn, seed=seed)

    files = None if threads else {"plan": path, "model": model}
    result = _verify(make, files, steps, tolerance, seed, on_progress)
    return {"plan": path, **result}


def verify_workload(
    workload: Workload,
    graph: Graph,
    plan: Plan,
    *,
    steps: int = 3,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    on_progress: OnProgress = lambda step: None,
) -> dict[str, Any]:
    """Train a module of this process with a plan and without, and return the comparison; see `verify`.

    Other processes do not have the module, so the ranks are threads. graph: of one micro-batch.
    """
    if any(p.is_meta for p in workload.model.parameters()):
        raise InputError(
            f"'{workload.name}' is on the meta device and has no weights: verify it on the CPU."
        )

    def make(bn: str) -> Twin:
        return make_twin(workload, graph, plan, bn=bn)

    return {"plan": "", **_verify(make, None, steps, tolerance, seed, on_progress)}


def _verify(
    make: Callable[[str], Twin],
    files: Mapping[str, str] | None,
    steps: int,
    tolerance: float,
    seed: int,
    on_progress: OnProgress,
) -> dict[str, Any]:
    """Train the twin and compare.

    make: returns the twin with other batch statistics (bn), or with the plan's for "". files: what
    processes load the job from; None: the ranks are threads.
    """
    report = _reporter(on_progress, steps)
    report("capturing", 0)
    twin, notes = _comparable_twin(make)
    job = twin.job
    if not job.plan.parsed_sync.synchronous:
        raise InputError(
            f"sync is '{job.plan.sync}', in which servers apply gradients as they come; no serial training "
            "computes the same: verify the plan with sync ps."
        )
    timeline = traffic.simulate_job(job, steps)
    _refuse_too_large(timeline)
    settings = {"steps": steps, "seed": seed}
    rank_settings = None if files is None else {**settings, **files, "bn": job.plan.bn}
    with default_dtype(torch.float64):
        plain = _train_plain(job, **settings, report=report)
        findings, failure = _train(
            job, plain, **settings, rank_settings=rank_settings, report=report
        )
    result = _result(job, timeline, findings, tolerance)
    return {
        **result,
        "holds": failure is None and all(check["holds"] for check in result["checks"]),
        "failure": failure,
        "transport": "threads" if files is None else "processes",
        "plain_losses": plain.losses,
        "casts": dict(twin.casts),
        "precision": explain_casts(twin.casts, tolerance),
        "notes": notes,
    }


def _train_plain(job: Job, *, steps: int, seed: int, report: Report) -> PlainRun:
    """Train with plain PyTorch and return the results.

    If steps overlap, the result is empty: each rank computes the reference itself (serial_replay.py).
    """
    if is_asynchronous(job.plan):
        return PlainRun()
    return train_plain(
        job, steps, seed, lambda step: report(f"plain module, step {step}", 1 + step)
    )


def _train(
    job: Job,
    plain: PlainRun,
    *,
    steps: int,
    seed: int,
    rank_settings: Mapping[str, Any] | None,
    report: Report,
) -> tuple[list[Findings], str | None]:
    """Train all ranks; return their findings or, if a rank fails, [] and the reason.

    rank_settings: the settings by which processes load the job; None: run the ranks as threads.
    """
    timeout = max(MIN_TIMEOUT, TIMEOUT_FACTOR * plain.seconds)

    def on_step(step: int) -> None:
        report(f"plan, step {step}", 1 + steps + step)

    options: dict[str, Any] = {"timeout": timeout, "on_progress": on_step}
    try:
        if rank_settings is None:
            return launch.run_on_threads(job, plain, steps=steps, seed=seed, **options), None
        return launch.run_on_processes(rank_settings, plain, job.plan.devices, **options), None
    except launch.RankFailure as error:
        return [], f"{error}."


def _comparable_twin(make: Callable[[str], Twin]) -> tuple[Twin, list[str]]:
    """Return the job in float64 and notes for the user.

    `bn` says over which samples batch norms compute their statistics: those of a device's tile
    ("local"), of the micro-batch ("microbatch") or of the whole batch ("global"). If serial training
    cannot repeat a plan with `bn: local`, the job gets another `bn`, and a note says so.
    """
    twin = make("")
    plan = twin.job.plan
    notes = _precision_notes(plan)
    if plan.bn != "local" or has_serial_reference(twin.job.graph, plan):
        return twin, notes
    bn = "global" if plan.microbatches == 1 else "microbatch"
    note = (
        "bn: local has no serial reference for this plan, because devices normalise copies of the same "
        f"sample differently: verified with bn: {bn}."
    )
    return make(bn), [*notes, note]


def _precision_notes(plan: Plan) -> list[str]:
    """Return a note that says in which precision a plan is compared, if it is not the plan's."""
    if plan.precision == DEFAULT:
        return []
    return [
        f"precision: {plan.precision} was not compared: both trainings compute in float64, on which "
        "a precision has no effect, and bytes are those of float64."
    ]


def _reporter(on_progress: OnProgress, steps: int) -> Report:
    """Return a function that reports progress; parts are the capture and the steps of both trainings."""

    def report(step: str, done: int) -> None:
        on_progress({"step": step, "done": done, "of": 1 + 2 * steps})

    return report


def _refuse_too_large(timeline: Timeline) -> None:
    """Raise InputError if all ranks together need more memory than this machine has."""
    needed, available = sum(peak_bytes(timeline)), memory()
    if needed > available:
        raise InputError(
            f"all ranks together need {needed:,} bytes in float64, this machine has {available:,}: "
            "verify on a larger one, or a plan for a smaller batch."
        )


def _result(
    job: Job, timeline: Timeline, findings: Sequence[Findings], tolerance: float
) -> dict[str, Any]:
    """Return the checks and the settings of the run; without findings, there are no checks."""
    plan = job.plan
    # If steps overlap, the program has all steps; if not, one step.
    program = timeline.program if is_asynchronous(plan) else job.program
    pairs = traffic.pair_rows(program, timeline, findings) if findings else []
    groups = traffic.group_rows(program, timeline, findings) if findings else []
    checks = [
        *_deviation_checks(findings, tolerance),
        *_byte_checks(program, timeline, pairs, groups),
    ]
    checks += _schedule_check(program, findings)
    return {
        "model": job.workload.name,
        "method": plan.method,
        "batch": sum(job.program.micro_batch_sizes),
        "schedule": plan.schedule.split("\n")[0],
        "staleness": findings[0].staleness if findings else {},
        "devices": plan.devices,
        "bn": plan.bn,
        "dtype": plan.dtype,
        "steps": timeline.program.plan.steps,
        "tolerance": tolerance,
        "checks": checks if findings else [],
        "losses": findings[0].losses if findings else [],
        "sent": pairs,
        "reduced": groups,
    }


def _deviation_checks(findings: Sequence[Findings], tolerance: float) -> list[dict[str, Any]]:
    """Return a check of the largest deviation of all ranks, for losses, gradients, parameters and buffers.

    A deviation that is NaN or infinite is None.
    """
    checks = []
    for what in ("loss", "gradients", "parameters", "buffers"):
        # (deviation, where, rank)
        worst = [(*f.worst[what], rank) for rank, f in enumerate(findings) if what in f.worst]
        if not worst:  # a module without buffers
            continue
        deviation, where, rank = max(worst)
        number = deviation if math.isfinite(deviation) else None
        where = f"{where}, rank {rank}"
        holds = deviation <= tolerance
        checks.append({"what": what, "deviation": number, "where": where, "holds": holds})
    return checks


def _schedule_check(program: Program, findings: Sequence[Findings]) -> list[dict[str, Any]]:
    """Return a check that actions waited for the actions that the schedule tells them to wait for.

    In some schedules, an action waits for an action of another worker without using its data (`waits`). All
    ranks run on this machine, so their clocks are the same. [] if the schedule has no such waits.
    """
    schedule = schedule_of(program.plan) if program.plan.stages else None
    if schedule is None or not schedule.waits:
        return []
    spans = [Span(*span) for rank in findings for span in rank.spans]
    worst = max(early_starts(schedule, spans), key=lambda e: e.seconds, default=None)
    where = f"{worst.action} after {worst.awaited}, step {worst.step}" if worst else ""
    seconds = worst.seconds if worst else 0.0
    return [{"what": TOO_EARLY, "deviation": seconds, "where": where, "holds": worst is None}]


def _byte_checks(
    program: Program, timeline: Timeline, pairs: Sequence[Mapping[str, Any]],
    groups: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:  # fmt: skip
    """Return checks that the bytes counted by the transport, the program and the simulator are equal.

    pairs, groups: the rows of traffic.pair_rows and traffic.group_rows.
    """
    total = traffic.program_total(program, timeline.program.plan.steps)
    difference = abs(total - traffic.simulated_total(timeline))
    return [
        _bytes_check("bytes by pair: transport = program", pairs, "transport", "program"),
        _bytes_check("bytes by pair: program = simulator", pairs, "program", "simulator"),
        _bytes_check("bytes summed: transport = program", groups, "transport", "program"),
        {"what": TOTAL_BYTES, "deviation": difference, "where": "", "holds": difference == 0},
    ]


def _bytes_check(
    what: str, rows: Sequence[Mapping[str, Any]], left: str, right: str
) -> dict[str, Any]:
    """Return a check that columns `left` and `right` of all rows are equal."""
    differences = {_row_name(row): abs(row[left] - row[right]) for row in rows}
    where = max(differences, key=lambda name: differences[name], default="")
    largest = differences.get(where, 0)
    return {
        "what": what,
        "deviation": largest,
        "where": where if largest else "",
        "holds": largest == 0,
    }


def _row_name(row: Mapping[str, Any]) -> str:
    """Return "source -> target" or the devices of an all-reduce."""
    if "source" in row:
        return f"{row['source']} -> {row['target']}"
    return ", ".join(map(str, row["devices"]))
