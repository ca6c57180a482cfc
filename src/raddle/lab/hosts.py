"""Runs commands on the hosts of an existing lab.

A host is emulated: a network namespace of this machine, with its own IP address.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raddle.errors import InputError
from raddle.lab import names
from raddle.lab.commands import path_of


@dataclass(frozen=True)
class Hosts:
    """Hosts 0, 1, … of a lab."""

    name: str  # of the lab
    addresses: tuple[str, ...]  # IP address of each host

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The network namespace of each host."""
        return tuple(names.namespace(self.name, host) for host in range(len(self.addresses)))

    def command(self, host: int, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv` on a host.

        The command replaces itself by `argv` (exec), so `argv` has the same process id.
        """
        if host not in range(len(self.addresses)):
            raise InputError(
                f"the lab '{self.name}' has hosts 0 to {len(self.addresses) - 1}, not {host}."
            )
        return [path_of("ip"), "netns", "exec", self.namespaces[host], *argv]

    def exec(self, host: int, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start `argv` on a host; `options` are those of subprocess.Popen."""
        return subprocess.Popen(self.command(host, argv), **options)
