"""The torchrun line of every host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from raddle.errors import InputError
from raddle.lab.hosts import Hosts

# Below the range that the kernel gives to outgoing connections, which could take it before the store does.
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
    """One torchrun a host, which meet at host 0; `argv` is a script or -m module, with its arguments."""
    if per_host < 1:
        raise InputError(f"a host runs 1 rank or more, not {per_host}.")
    port = free_port(lab, host=0)
    return [[*_torchrun(lab, host, port, per_host), *argv] for host in range(len(lab.addresses))]


def free_port(lab: Hosts, host: int) -> int:
    """A port that nobody listens on, on this host."""
    command = lab.command(host, [sys.executable, "-I", "-S", "-c", _FREE_PORT, lab.addresses[host]])
    completed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    if not completed.stdout.strip():
        raise InputError(f"host {host} has no free port: end what runs there.")
    return int(completed.stdout)


def _torchrun(lab: Hosts, host: int, port: int, per_host: int) -> list[str]:
    flags = {
        "--nnodes": len(lab.addresses),
        "--nproc-per-node": per_host,
        "--node-rank": host,
        "--local-addr": lab.addresses[host],  # else torchrun looks up the name of the machine
        "--master-addr": lab.addresses[0],
        "--master-port": port,
    }
    arguments = [str(word) for flag in flags.items() for word in flag]
    return [sys.executable, "-m", "raddle.transport.torchrun", *arguments]
