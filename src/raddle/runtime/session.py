"""The main program of one rank, `python -m raddle.runtime`: joins the other ranks, loads, trains, reports.

Training starts only if all ranks can run the plan. If a rank cannot, it prints why, and all ranks exit. A
job is all that a rank needs to train: model, loss, batch, plan and program (job.py).
"""

from __future__ import annotations

import os
import pathlib
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import torch

from raddle.errors import InputError
from raddle.graph.arguments import map_samples
from raddle.plans.pipelining import is_asynchronous
from raddle.program.chrome_trace import write_events
from raddle.runtime.clocks import clock_offset
from raddle.runtime.execution.compiled_functions import (
    CompiledFunctions,
    NotCompiled,
    compile_mode,
)
from raddle.runtime.job import Job, load_job, optimizer_for
from raddle.runtime.measured_trace import trace_events
from raddle.runtime.options import COMPILE, Options, parse
from raddle.runtime.progress import Progress
from raddle.runtime.recorder import Recorder
from raddle.runtime.step_times import StepTimes
from raddle.runtime.summary import RankReport, show, summarise
from raddle.runtime.trainer import Trainer
from raddle.transport.base import Transport
from raddle.transport.exchange import exchange_objects
from raddle.transport.join import join

TRACED_STEPS = 3  # a trace has the last three steps
EXIT_DELAY = 0.5  # seconds that other ranks wait, so that the rank that failed exits first
# For these errors the message is enough; for others (bugs) the traceback is printed too.
EXPECTED_ERRORS = (
    InputError,
    FloatingPointError,
    TimeoutError,
    MemoryError,
    torch.OutOfMemoryError,
    KeyboardInterrupt,
)


def main(argv: Sequence[str]) -> int:
    """Runs one rank; returns the exit code: 0 success, 1 a step failed, 2 the plan cannot be run here."""
    try:
        options = parse(argv)
        place = choose_place(options.device, options.backend)
        torch.set_num_threads(options.threads or default_threads())
    except InputError as error:  # all ranks have the same error, so only rank 0 prints it
        if os.environ.get("RANK", "0") == "0":
            _print_error(error)
        return 2
    with _reserve_stdout() as out:
        return _run_rank(options, place, out)


def _run_rank(options: Options, place: torch.device, out: TextIO) -> int:
    """Joins the other ranks, loads the job and trains; returns the exit code."""
    try:
        transport = join(place, options.backend, options.timeout)
    except (InputError, RuntimeError, TimeoutError) as error:
        _print_error(
            f"rank {os.environ.get('RANK', '0')} cannot join: {str(error).splitlines()[0]}"
        )
        return 2 if isinstance(error, InputError) else 1
    try:
        job = _load_on_all_ranks(options, transport, place)
        if job is None:
            return 2
        with _short_warnings(transport.rank):
            _train(job, options, transport, place, out)
    except BaseException as error:
        transport.fail(f"{type(error).__name__}: {error}")
        _print_failure(error, transport)
        return 1
    finally:
        transport.close()
    return 0


# -- before the first step ---------------------------------------------------------------------------


def choose_place(device: str | None, backend: str | None = None) -> torch.device:
    """Returns the torch device of this rank: the CPU or a GPU, which ranks can share only with gloo."""
    available = torch.cuda.is_available()
    if device == "cpu" or (device is None and not available):
        return torch.device("cpu")
    if not available:
        raise InputError("there is no GPU that torch can use here: run with --device cpu.")
    gpus, ranks = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if ranks > gpus and backend != "gloo":
        raise InputError(
            f"{ranks} ranks would share {gpus} GPUs here, which NCCL cannot: add --backend gloo, "
            "or --device cpu."
        )
    place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % gpus)
    torch.cuda.set_device(place)
    return place


def default_threads() -> int:
    """Returns the number of threads of this rank.

    It is OMP_NUM_THREADS if the user has set it, else the number of cores divided by the ranks here.

    With several ranks, torchrun itself sets OMP_NUM_THREADS=1 if the user has not set it. So a 1 is ignored
    then; to have one thread, use --threads 1.
    """
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    omp_threads = os.environ.get("OMP_NUM_THREADS", "")
    if omp_threads.isdigit() and int(omp_threads) > 0 and not (omp_threads == "1" and ranks > 1):
        return int(omp_threads)
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, cores // ranks)


def _load_on_all_ranks(options: Options, transport: Transport, place: torch.device) -> Job | None:
    """Loads the job on every rank; returns None if any rank cannot run it.

    A rank that cannot run it prints the reason, unless rank 0 prints the same one.
    """
    job, sentence = None, ""  # sentence: why this rank cannot run the job; "": it can
    try:
        job = _load(options, transport)
    except InputError as error:
        sentence = str(error)
    sentences: list[str] = exchange_objects(transport, place, sentence)
    if not any(sentences):
        return job
    if sentence and (transport.rank == 0 or sentence != sentences[0]):
        name = "" if transport.rank == 0 else f"rank {transport.rank}: "
        _print_error(f"{name}{sentence}")
    return None


def _load(options: Options, transport: Transport) -> Job:
    """Loads and returns the job; raises InputError if this rank cannot run it."""
    job = load_job(
        options.plan, model=options.model or "", dtype=options.dtype or "",
        dropout=options.dropout or "", precision=options.precision or "",
        optimizer=options.optimizer or "", seed=options.seed,
    )  # fmt: skip
    if job.plan.devices != transport.size:
        raise InputError(
            f"the plan needs {job.plan.devices} ranks, this job has {transport.size}: "
            f"re-plan with --cluster local:{transport.size}, or launch {job.plan.devices}."
        )
    optimizer_for(job.plan.optimizer, options.lr)  # raises if there is no such optimizer
    if options.trace is not None and not pathlib.Path(options.trace).resolve().parent.is_dir():
        raise InputError(
            f"there is no folder for '{options.trace}': make it, or name another file."
        )
    return job


# -- training ----------------------------------------------------------------------------------------


def _train(
    job: Job, options: Options, transport: Transport, place: torch.device, out: TextIO
) -> None:
    """Trains, gathers the reports of all ranks, and prints the summary on rank 0."""
    trainer = Trainer(
        job.workload.model,
        job.program,
        optimizer_for(job.plan.optimizer, options.lr),
        transport,
        place,
        loss=job.workload.loss,
        seed=options.seed,
        clip_norm=options.clip_norm,
        check_finite=options.check_finite,
        functions=CompiledFunctions(compile_mode(COMPILE[options.compile], place)),
    )
    recorder = Recorder(trainer)
    times = _timed_steps(trainer, job, options, recorder)
    trainer.synchronize()
    reports = _gather_reports(trainer, times)
    if options.trace is not None:
        _write_trace(trainer, recorder, [rank.kind for rank in reports], options.trace)
    if trainer.rank == 0:
        result = summarise(job, options, times, reports)
        show(result, out, as_json=options.json)


def _timed_steps(trainer: Trainer, job: Job, options: Options, recorder: Recorder) -> StepTimes:
    """Trains and returns the times: a step lasts from the end of the previous one to its own end."""
    # part: what this rank reads of the batch; every step trains on the same batch
    batch = map_samples(lambda tensor: tensor.to(trainer.place), trainer.part(job.batch))
    samples = sum(job.program.micro_batch_sizes)
    progress = Progress(options.steps, samples, shown=trainer.rank == 0)
    times, functions = StepTimes([], [], []), trainer.setup.functions
    first_traced = options.steps - min(TRACED_STEPS, options.steps - options.warmup_steps)
    trainer.transport.barrier()
    if is_asynchronous(job.plan):
        return _timed_overlapping_steps(trainer, batch, options, recorder)
    previous_end = time.perf_counter()
    for number in range(options.steps):
        if options.trace is not None and number == first_traced:
            recorder.start()
        compiled_before = functions.seconds
        loss, end = float(trainer.step(batch)), time.perf_counter()
        times.add(1, [loss], end - previous_end, functions.seconds - compiled_before)
        previous_end = end
        progress.step(number + 1, times.seconds, loss)
    return times


def _timed_overlapping_steps(
    trainer: Trainer, batch: Any, options: Options, recorder: Recorder
) -> StepTimes:
    """Trains with overlapping steps; returns the times: the mean for each, as the steps overlap."""
    times, functions = StepTimes([], [], []), trainer.setup.functions
    for count in (options.warmup_steps, options.steps - options.warmup_steps):
        if options.trace is not None and times.losses:
            recorder.start()
        start, compiled_before = time.perf_counter(), functions.seconds
        losses = [float(loss) for loss in trainer.train([batch] * count)]
        elapsed = time.perf_counter() - start
        times.add(count, losses, elapsed, functions.seconds - compiled_before)
    return times


# -- the end -----------------------------------------------------------------------------------------


def _gather_reports(trainer: Trainer, times: StepTimes) -> list[RankReport]:
    """Returns the reports of all ranks."""
    transport, place = trainer.transport, trainer.place
    kind = torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"
    counts = (transport.total_sent(), dict(transport.collective_bytes))
    slices = (0, 0)  # messages with slices, and how many were sent before earlier ones (priority)
    if trainer.plan.parsed_sync.has_servers and trainer.executor.parameter_sync is not None:
        counters = transport.wire().counters
        slices = counters.messages, counters.overtaken
    groups = transport.prepare([], [])  # makes none, and returns those made so far
    report = RankReport(
        kind, torch.get_num_threads(), *counts, slices, groups, times.compile_seconds
    )
    return trainer.setup.exchange(report)


def _write_trace(trainer: Trainer, recorder: Recorder, kinds: Sequence[str], path: str) -> None:
    """Gathers the recorded intervals of all ranks; rank 0 writes the trace file.

    kinds: for each rank, the name of its device. setup.exchange: all-gather of Python objects.
    """
    # Times of this rank's clock plus these seconds are times of rank 0's clock.
    seconds = clock_offset(trainer.transport, trainer.setup.exchange)
    intervals = trainer.setup.exchange([interval.shift(seconds) for interval in recorder.intervals])
    if trainer.rank == 0:
        write_events(trace_events(kinds, intervals), path)


def _print_failure(error: BaseException, transport: Transport) -> None:
    """Prints why the run stops: on the rank that failed, and on the first rank of each machine."""
    failed, reason = transport.failures.first_failure or (-1, "")
    if failed == transport.rank:
        if not isinstance(error, EXPECTED_ERRORS):
            traceback.print_exception(error)
        _print_error(f"rank {failed} failed: {reason}")
        return
    if os.environ.get("LOCAL_RANK", "0") == "0":
        _print_error(error)
    time.sleep(EXIT_DELAY)  # torchrun reports the first rank that exits as the cause


def _print_error(sentence: object) -> None:
    print(f"raddle: {sentence}", file=sys.stderr, flush=True)


@contextmanager
def _short_warnings(rank: int) -> Iterator[None]:
    """Within this context, prints each warning about a failed torch.compile once, as one sentence."""
    shown: set[str] = set()

    def show_warning(
        message: Warning | str, category: type[Warning], *place: Any, **more: Any
    ) -> None:
        if not issubclass(category, NotCompiled):
            show_others(message, category, *place, **more)
        elif str(message) not in shown:
            shown.add(str(message))
            _print_error(message if rank == 0 else f"rank {rank}: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", NotCompiled)
        show_others, warnings.showwarning = warnings.showwarning, show_warning
        yield


@contextmanager
def _reserve_stdout() -> Iterator[TextIO]:
    """Gives stdout to the caller alone; the output of libraries (gloo, for example) goes to stderr."""
    sys.stdout.flush()
    saved_fd = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(saved_fd), "w") as out:
            yield out
    finally:
        sys.stdout.flush()
        os.dup2(saved_fd, 1)
        os.close(saved_fd)
