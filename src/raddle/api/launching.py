"""Builds and runs the torchrun command of `raddle run`: machines, device, backend, environment.

torchrun starts `python -m raddle.runtime` for each rank; `Options` are the options of that program.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace

from raddle.clusters.catalogue import cores
from raddle.errors import InputError
from raddle.runtime.options import Options
from raddle.transport.orphans import starter_env

__all__ = [
    "Machines",
    "choose_device",
    "exec_torchrun",
    "gpus",
    "rank_environment",
    "torchrun_arguments",
]


@dataclass(frozen=True)
class Machines:
    """The machines (nodes) of a run, as torchrun's options describe them."""

    count: int | None = None  # None: this machine only
    node_rank: int | None = None  # which machine this is
    address: str | None = None  # address of machine 0, the one with rank 0
    port: int | None = None  # port on machine 0

    def __post_init__(self) -> None:
        """Raises InputError for options that do not go together."""
        given = {
            "--node-rank": self.node_rank,
            "--master-addr": self.address,
            "--master-port": self.port,
        }
        named = [flag for flag, value in given.items() if value is not None]
        if self.count is None and named:
            raise InputError(
                f"{named[0]} is for several machines: give their number with --nnodes."
            )
        if self.count is not None and self.count < 1:
            raise InputError(f"--nnodes is {self.count}: give the number of machines, 1 or more.")
        if (self.count or 1) > 1 and (self.node_rank is None or self.address is None):
            raise InputError(
                "a run on several machines needs the address of machine 0 (--master-addr) and the number "
                "of this machine (--node-rank): give both."
            )

    def devices_per_node(self, devices: int) -> int:
        """Return how many of a plan's devices each machine has."""
        if devices % (self.count or 1):
            raise InputError(
                f"{self.count} machines cannot have equally many of the plan's {devices} devices: "
                f"give --nnodes a divisor of {devices}."
            )
        return devices // (self.count or 1)

    def flags(self) -> list[str]:
        """Return the machines as options of torchrun."""
        if self.count is None:
            return ["--standalone"]  # torchrun chooses a free port
        flags = ["--nnodes", str(self.count), "--node-rank", str(self.node_rank or 0)]
        flags += ["--master-addr", self.address or "localhost"]
        return flags if self.port is None else [*flags, "--master-port", str(self.port)]


def gpus() -> int:
    """Return how many GPUs torch can use on this machine."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_device(
    options: Options, devices: int, *, local: bool, single_node: bool, gpus: int
) -> Options:
    """Return the options with the device, and where needed the backend, filled in.

    options.device: "cpu", "cuda", or None for cuda if there are enough GPUs. devices: number of ranks on
    this machine. local: accept ranks that share this machine's CPU or, with the device "cuda", its GPUs.
    single_node: no other machine takes part. gpus: number of GPUs of this machine.
    """
    if options.device != "cpu" and gpus >= devices:
        return replace(options, device="cuda")
    if options.device == "cuda" and not gpus:
        raise InputError("there is no GPU that torch can use here: run with --device cpu.")
    if gpus and not local and options.device != "cpu":
        raise InputError(
            f"the plan needs {devices} GPUs of this machine, which has {gpus}: add --local to try it "
            f"with {devices} processes on the CPU, or --nnodes for several machines."
        )
    if options.device == "cuda":
        return replace(options, backend=options.backend or "gloo")  # NCCL needs a GPU for each rank
    if devices > 1 and single_node and not local:
        raise InputError(
            f"the plan needs {devices} ranks, which would share the CPU of this machine: "
            "add --local to let them share it, or --nnodes for several machines."
        )
    return replace(options, device="cpu")


def torchrun_arguments(options: Options, devices: int, machines: Machines) -> list[str]:
    """Return the arguments of torchrun. devices: number of ranks on this machine."""
    ranks = ["--nproc-per-node", str(devices)]
    return [*machines.flags(), *ranks, "-m", "raddle.runtime", *options.command_line()]


def rank_environment(options: Options, devices: int) -> dict[str, str]:
    """Return the environment variables of the ranks, with the number of threads of each rank.

    Without OMP_NUM_THREADS torchrun would give each rank one thread, and print a long warning. The value
    that the user has set, if any, is kept. devices: number of ranks on this machine.
    """
    threads = options.threads or max(1, cores() // devices)
    return {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        **starter_env(),  # the ranks end when this process, which becomes torchrun, ends
    }


def exec_torchrun(arguments: list[str], env: dict[str, str]) -> None:
    """Replace this process by torchrun; does not return."""
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "torch.distributed.run", *arguments], env)
