"""Writes the torchrun commands that start a distributed program on the hosts of a lab.

A lab is a set of emulated hosts on this machine (network namespaces); see raddle.lab.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from raddle.errors import InputError
from raddle.lab.hosts import Hosts

# Prints a free port. It is below the range of ports that the kernel uses for outgoing connections: one of
# these could take the port before torchrun's store does.
_FREE_PORT = """
import random, socket, sys
for port in random.sample(range(20_000, 32_000), 100):
    try:
        socket.create_server((sys.argv[1], port)).close()
    except OSError:
        continue
    print(port)
    break
"""


def torchrun_commands(lab: Hosts, argv: Sequence[str], *, per_host: int = 1) -> list[list[str]]:
    """Return a torchrun command for each host; host 0 is the master.

    argv: a script or `-m module`, with its arguments; per_host: number of ranks on each host.
    """
    if per_host < 1:
        raise InputError(f"a host runs 1 rank or more, not {per_host}.")
    port = free_port(lab, host=0)
    return [[*_torchrun(lab, host, port, per_host), *argv] for host in range(len(lab.addresses))]


def free_port(lab: Hosts, host: int) -> int:
    """Return a port of this host that is not in use."""
    command = lab.command(host, [sys.executable, "-I", "-S", "-c", _FREE_PORT, lab.addresses[host]])
    completed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    if not completed.stdout.strip():
        raise InputError(f"host {host} has no free port: end what runs there.")
    return int(completed.stdout)


def _torchrun(lab: Hosts, host: int, port: int, per_host: int) -> list[str]:
    """Return the torchrun command of a host, without the program to run.

    raddle.transport.torchrun is torchrun, except that it ends when the process that started it has ended.
    """
    flags = {
        "--nnodes": len(lab.addresses),
        "--nproc-per-node": per_host,
        "--node-rank": host,
        "--local-addr": lab.addresses[host],  # by default torchrun looks up the name of the machine
        "--master-addr": lab.addresses[0],
        "--master-port": port,
    }
    arguments = [str(word) for flag in flags.items() for word in flag]
    return [sys.executable, "-m", "raddle.transport.torchrun", *arguments]
