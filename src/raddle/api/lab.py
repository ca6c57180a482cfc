"""Labs: hosts emulated on one machine, with a network of limited rate, and commands that run on them.

`INTERFACE` is the name of the network interface on each host; `launch` runs commands on several hosts at
once.
"""

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
