"""`raddle run` and `raddle verify`: plans on the runtime."""

import math
import os
import shlex
import signal
import sys
from typing import Annotated

import typer

from raddle.cli.output import check_folder, show
from raddle.errors import InputError

PlanFile = Annotated[str, typer.Argument(metavar="PLAN", help="A plan file.")]
ModelOption = Annotated[
    str | None,
    typer.Option(metavar="FILE.PY:FUNCTION", help="The model, if the plan names none."),
]
Seed = Annotated[int, typer.Option(metavar="S", help="Of weights, batch and dropout.")]
Json = Annotated[bool, typer.Option("--json", help="JSON alone on stdout.")]


def run(
    plan: PlanFile,
    steps: Annotated[int, typer.Option(metavar="K", min=1, help="Training steps.")] = 20,
    local: Annotated[
        bool, typer.Option("--local", help="All ranks on this machine, whatever it has.")
    ] = False,
    warmup: Annotated[
        int | None, typer.Option(metavar="W", min=0, help="First steps that are not measured.")
    ] = None,
    seed: Seed = 0,
    lr: Annotated[
        float | None, typer.Option(metavar="X", help="Learning rate of the plan's optimizer.")
    ] = None,
    clip_norm: Annotated[
        float | None, typer.Option(metavar="X", help="Limit of the gradients' global norm.")
    ] = None,
    check_finite: Annotated[
        bool, typer.Option("--check-finite", help="Stop where the loss is no number.")
    ] = False,
    model: ModelOption = None,
    device: Annotated[
        str | None, typer.Option(metavar="cpu|cuda", help="What ranks compute on.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(metavar="gloo|nccl", help="Of torch.distributed.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="float32|float64", help="Another precision.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of a rank; else a share of the cores.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds that a rank waits for another.")
    ] = 300.0,
    nnodes: Annotated[int | None, typer.Option(metavar="M", help="Several machines.")] = None,
    node_rank: Annotated[int | None, typer.Option(metavar="I", help="Which one this is.")] = None,
    master_addr: Annotated[str | None, typer.Option(metavar="A", help="Where they meet.")] = None,
    master_port: Annotated[int | None, typer.Option(metavar="P", help="At which port.")] = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write what was measured for Perfetto, as t.json.gz."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a plan for real with torchrun: measured beside predicted."""
    from raddle.cli.launching import Machines, environment, placed, start, torchrun
    from raddle.reports import terminal
    from raddle.runtime.options import Options, parse

    options = Options(
        plan, steps=steps, warmup=warmup, seed=seed, lr=lr, clip_norm=clip_norm,
        check_finite=check_finite, model=model, device=device, backend=backend, dtype=dtype,
        threads=threads or _threads_set(), timeout=timeout, trace=trace, json=as_json,
    )  # fmt: skip
    parse(options.arguments())  # what ranks would refuse
    machines = Machines(nnodes, node_rank, master_addr, master_port)
    if trace is not None:
        check_folder(trace)
    with terminal.progress(f"checking {plan}"):
        devices = _check(plan, model, dtype, seed)
    import torch

    here = machines.share(devices)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    options = placed(options, here, local=local, alone=nnodes is None, gpus=gpus)
    words = torchrun(options, here, machines)
    print(shlex.join(["torchrun", *words]), file=sys.stderr)
    start(words, environment(options, here))


def verify(
    plan: PlanFile,
    steps: Annotated[int, typer.Option(metavar="K", min=1, help="Training steps.")] = 3,
    threads: Annotated[
        bool, typer.Option("--threads", help="Ranks are threads of this process.")
    ] = False,
    tolerance: Annotated[
        float, typer.Option(metavar="X", help="Largest relative deviation that holds.")
    ] = 1e-9,
    model: ModelOption = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train a plan and the plain module, and compare: exit code 1 where they differ.

    Losses, gradients, parameters and buffers in float64, and the bytes that were sent with those of the
    program and of the simulator. Exit code 2 where it cannot be tried here.
    """
    from raddle.reports import terminal
    from raddle.reports.verification import show_verdict
    from raddle.verification.verdict import verify as compared

    if not (tolerance >= 0 and math.isfinite(tolerance)):
        raise InputError(f"--tolerance is {tolerance}: give a small positive number, as 1e-9.")
    signal.signal(signal.SIGTERM, _exit)
    with terminal.progress_bar(f"verifying {plan}") as heard:
        result = compared(
            plan, steps=steps, threads=threads, tolerance=tolerance, model=model or "", seed=seed,
            heard=heard,
        )  # fmt: skip
    show(result, show_verdict, as_json=as_json)
    if not result["holds"]:
        raise typer.Exit(1)


def _check(plan: str, model: str | None, dtype: str | None, seed: int) -> int:
    """Raises what every rank would, before one is started; the number of devices."""
    from raddle.runtime.job import load_job, optimizer_for

    job = load_job(plan, model=model or "", dtype=dtype or "", seed=seed, device="meta")
    optimizer_for(job.plan.optimizer)
    return job.plan.devices


def _threads_set() -> int | None:
    """What the user has set, told to ranks as an option: torchrun sets the variable itself."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) > 0 else None


def _exit(number: int, frame: object) -> None:
    """A SIGTERM ends the ranks too, as Ctrl-C does."""
    sys.exit(128 + number)
