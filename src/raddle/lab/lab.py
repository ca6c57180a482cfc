"""Defines the class `Lab`: makes, finds and removes emulated hosts, runs plans on them, counts bytes.

A host is a network namespace of this machine; raddle/lab/__init__.py has a picture and an example.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from raddle.errors import InputError
from raddle.lab import names, namespaces, status, torchrun
from raddle.lab.commands import check_system
from raddle.lab.hosts import Hosts
from raddle.lab.launch import launch
from raddle.lab.rates import host_rates

MAX_HOSTS = 64


class Traffic(NamedTuple):
    """Bytes through the network interface of a host, including headers."""

    sent: int
    received: int


class Lab(Hosts):
    """Emulated hosts 0, 1, … on a network of their own; a `with` block removes them at its end."""

    @classmethod
    def up(
        cls,
        *,
        hosts: int,
        rate: str = "1gbit",
        rates: Mapping[int, str] | None = None,
        name: str = names.DEFAULT,
    ) -> Lab:
        """Make a lab; the link of a host has the rate `rates[host]` or, if there is none, `rate`."""
        if not 1 <= hosts <= MAX_HOSTS:
            raise InputError(f"a lab has 1 to {MAX_HOSTS} hosts, not {hosts}.")
        per_host = host_rates(hosts, rate, rates or {})
        names.check_name(name)
        check_system()
        namespaces.build(name, per_host)
        return cls.find(name)

    @classmethod
    def find(cls, name: str = names.DEFAULT) -> Lab:
        """Return the existing lab of this name; raises InputError if it does not exist or is incomplete."""
        names.check_name(name)
        check_system()
        rows = status.host_rows(name)
        if not rows:
            raise InputError(
                f"there is no lab '{name}': make it with `{names.raddle_command('up', name)}`."
            )
        for i, row in enumerate(rows):
            if row["host"] != i or row["address"] is None or row["rate"] is None:
                raise InputError(
                    f"the lab '{name}' is not whole at host {i}: "
                    f"remove it with `{names.raddle_command('down', name)}`."
                )
        return cls(name=name, addresses=tuple(row["address"] for row in rows))

    def counters(self) -> list[Traffic]:
        """Return the bytes that each host has sent and received since the lab was made."""
        return [Traffic(*status.traffic(namespace)) for namespace in self.namespaces]

    def run(
        self,
        plan: str,
        *options: str,
        timeout: float,
        steps: int | None = None,
        per_host: int = 1,
        show: bool = False,
    ) -> list[str]:
        """Run a plan with `per_host` ranks on every host; return the output of each host.

        options: further options of `python -m raddle.runtime`; timeout in seconds; show: see `launch`.
        """
        step_option = [] if steps is None else ["--steps", str(steps)]
        argv = ["-m", "raddle.runtime", plan, *step_option, *options]
        commands = torchrun.torchrun_commands(self, argv, per_host=per_host)  # by host
        return launch(self, commands.__getitem__, timeout, show=show)

    def down(self) -> None:
        """End the processes on the hosts, and remove the hosts."""
        namespaces.remove(self.name)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *exception: object) -> None:
        self.down()
