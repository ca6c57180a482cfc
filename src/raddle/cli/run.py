"""The verb `run`: trains with a plan. The process is replaced by torchrun, which starts the ranks."""

import os
import shlex
import sys
from typing import Annotated

import typer

from raddle.cli.options import (
    Json,
    ModelOption,
    OtherOptimizer,
    OtherPrecision,
    PlanFile,
    RunSeed,
)
from raddle.cli.output import check_folder


def run(
    plan: PlanFile,
    steps: Annotated[int, typer.Option(metavar="K", min=1, help="Number of training steps.")] = 20,
    local: Annotated[
        bool,
        typer.Option(
            "--local", help="Start all ranks on this machine, even if they share its CPU."
        ),
    ] = False,
    warmup: Annotated[
        int | None,
        typer.Option(metavar="W", min=0, help="Number of first steps that are not measured."),
    ] = None,
    seed: RunSeed = 0,
    lr: Annotated[
        float | None, typer.Option(metavar="X", help="Learning rate of the plan's optimizer.")
    ] = None,
    clip_norm: Annotated[
        float | None, typer.Option(metavar="X", help="Clip gradients to this global norm.")
    ] = None,
    check_finite: Annotated[
        bool, typer.Option("--check-finite", help="Stop if the loss is NaN or infinite.")
    ] = False,
    model: ModelOption = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="cpu|cuda", help="Device of the ranks; default: cuda if there are enough GPUs."
        ),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(metavar="gloo|nccl", help="Backend of torch.distributed.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="float32|float64", help="Dtype of the model, instead of the plan's."),
    ] = None,
    precision: OtherPrecision = None,
    optimizer: OtherOptimizer = None,
    compile: Annotated[
        str,
        typer.Option(
            metavar="auto|on|off|max-autotune",
            help="Run segments through torch.compile; auto: on GPUs.",
        ),
    ] = "auto",
    dropout: Annotated[
        str | None,
        typer.Option(
            metavar="native|exact",
            help="Dropout of attention, instead of the plan's: the kernel's, or plan-independent.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Threads of each rank; default: an equal share of the cores."
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="S", help="Seconds that a rank waits for another before it fails."),
    ] = 300.0,
    nnodes: Annotated[int | None, typer.Option(metavar="M", help="Number of machines.")] = None,
    node_rank: Annotated[
        int | None, typer.Option(metavar="I", help="Number of this machine, from 0.")
    ] = None,
    master_addr: Annotated[
        str | None, typer.Option(metavar="A", help="Address of machine 0.")
    ] = None,
    master_port: Annotated[int | None, typer.Option(metavar="P", help="Port on machine 0.")] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write a trace of the run for Perfetto, such as t.json.gz."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train with a plan on torchrun, and print measured next to predicted times."""
    from raddle.api.launching import (
        Machines,
        choose_device,
        exec_torchrun,
        gpus,
        rank_environment,
        torchrun_arguments,
    )
    from raddle.api.running import Options, devices_needed, parse
    from raddle.reports.progress import spinner

    # The options of the program that torchrun starts for each rank.
    options = Options(
        plan, steps=steps, warmup=warmup, seed=seed, lr=lr, clip_norm=clip_norm,
        check_finite=check_finite, model=model, device=device, backend=backend, dtype=dtype,
        precision=precision, optimizer=optimizer, compile=compile, dropout=dropout,
        threads=threads or _threads_from_environment(), timeout=timeout, trace=trace, json=as_json,
    )  # fmt: skip
    parse(options.command_line())  # raises the errors of wrong options here, before the ranks start
    machines = Machines(nnodes, node_rank, master_addr, master_port)
    if trace is not None:
        check_folder(trace)
    with spinner(f"checking {plan}"):
        devices = devices_needed(
            plan, model=model, dtype=dtype, precision=precision, optimizer=optimizer, seed=seed
        )
    local_ranks = machines.devices_per_node(devices)  # the number of ranks on this machine
    options = choose_device(
        options, local_ranks, local=local, single_node=nnodes is None, gpus=gpus()
    )
    arguments = torchrun_arguments(options, local_ranks, machines)
    print(shlex.join(["torchrun", *arguments]), file=sys.stderr)
    exec_torchrun(arguments, rank_environment(options, local_ranks))


def _threads_from_environment() -> int | None:
    """Return the user's OMP_NUM_THREADS, or None.

    It is passed to the ranks as an option, because torchrun may set the variable itself.
    """
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdigit() and int(text) > 0 else None
