"""The verb `run`."""

import os
import shlex
import sys
from typing import Annotated

import typer

from raddle.cli.options import Json, ModelOption, PlanFile, RunSeed
from raddle.cli.output import check_folder


def run(
    plan: PlanFile,
    steps: Annotated[int, typer.Option(metavar="K", min=1, help="Training steps.")] = 20,
    local: Annotated[
        bool, typer.Option("--local", help="All ranks on this machine, whatever it has.")
    ] = False,
    warmup: Annotated[
        int | None, typer.Option(metavar="W", min=0, help="First steps that are not measured.")
    ] = None,
    seed: RunSeed = 0,
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

    options = Options(
        plan, steps=steps, warmup=warmup, seed=seed, lr=lr, clip_norm=clip_norm,
        check_finite=check_finite, model=model, device=device, backend=backend, dtype=dtype,
        threads=threads or _threads_from_environment(), timeout=timeout, trace=trace, json=as_json,
    )  # fmt: skip
    parse(options.command_line())  # what ranks would refuse
    machines = Machines(nnodes, node_rank, master_addr, master_port)
    if trace is not None:
        check_folder(trace)
    with spinner(f"checking {plan}"):
        devices = devices_needed(plan, model=model, dtype=dtype, seed=seed)
    local_ranks = machines.devices_per_node(devices)
    options = choose_device(
        options, local_ranks, local=local, single_node=nnodes is None, gpus=gpus()
    )
    arguments = torchrun_arguments(options, local_ranks, machines)
    print(shlex.join(["torchrun", *arguments]), file=sys.stderr)
    exec_torchrun(arguments, rank_environment(options, local_ranks))


def _threads_from_environment() -> int | None:
    """What the user has set, told to ranks as an option: torchrun sets the variable itself."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdigit() and int(text) > 0 else None
