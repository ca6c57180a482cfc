"""Labs: hosts with a shaped network between them, on one machine, and commands that run on them."""

from __future__ import annotations

from raddle.lab import Lab, LaunchError, launch
from raddle.lab.commands import check_system
from raddle.lab.names import INTERFACE
from raddle.lab.rates import parse_rate
from raddle.lab.torchrun import torchrun_commands

__all__ = [
    "INTERFACE",
    "Lab",
    "LaunchError",
    "check_system",
    "launch",
    "parse_rate",
    "torchrun_commands",
]
