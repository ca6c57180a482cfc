"""A lab in Python: it is made, found and removed, runs plans, and says what its hosts have sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from raddle.errors import InputError
from raddle.lab import names, namespaces, status, torchrun
from raddle.lab.commands import check_system
from raddle.lab.hosts import Hosts
from raddle.lab.launch import launch
from raddle.lab.rates import host_rates

MOST_HOSTS = 64


class Traffic(NamedTuple):
    """Bytes through the interface of a host, headers included."""

    sent: int
    received: int


class Lab(Hosts):
    """Hosts 0, 1, … on a network of their own; as a context, removed at its end."""

    @classmethod
    def up(
        cls,
        *,
        hosts: int,
        rate: str = "1gbit",
        rates: Mapping[int, str] | None = None,
        name: str = names.DEFAULT,
    ) -> Lab:
        """Make a lab whose links have `rate`, but for the hosts that `rates` names."""
        if not 1 <= hosts <= MOST_HOSTS:
            raise InputError(f"a lab has 1 to {MOST_HOSTS} hosts, not {hosts}.")
        per_host = host_rates(hosts, rate, rates or {})
        names.check_name(name)
        check_system()
        namespaces.build(name, per_host)
        return cls.find(name)

    @classmethod
    def find(cls, name: str = names.DEFAULT) -> Lab:
        """The lab of this name that is up."""
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
        """What each host has sent and received since the lab is up."""
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
        """Run a plan with `per_host` ranks on every host; return what each host printed."""
        step_option = [] if steps is None else ["--steps", str(steps)]
        argv = ["-m", "raddle.runtime", plan, *step_option, *options]
        commands = torchrun.torchrun_commands(self, argv, per_host=per_host)
        return launch(self, commands.__getitem__, timeout, show=show)

    def down(self) -> None:
        """End what runs on the hosts, and remove them."""
        namespaces.remove(self.name)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *exception: object) -> None:
        self.down()
