"""The verbs of `raddle lab`: hosts with a shaped network between them, emulated on one machine.

A host is a network namespace; a shaped network has links of limited rate.
"""

import json
import os
import pathlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from raddle.cli.end_signals import end_by_sigterm
from raddle.errors import InputError
from raddle.lab.names import DEFAULT

if TYPE_CHECKING:
    from raddle.lab.launch import LaunchError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Emulate hosts on a network of limited rate, on this machine.",
)

Name = Annotated[str, typer.Option(metavar="NAME", help="Name of the lab; several labs can be up.")]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")]


@app.command()
def up(
    hosts: Annotated[int, typer.Option(metavar="H", help="Number of hosts, 1 to 64.")] = 4,
    rate: Annotated[
        str, typer.Option(metavar="R", help="Rate of every link, such as 1gbit.")
    ] = "1gbit",
    rate_of: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST=R", help="Another rate for one host, such as 2=100mbit. Repeatable."
        ),
    ] = None,
    name: Name = DEFAULT,
    as_json: Json = False,
) -> None:
    """Create the hosts and the network between them."""
    from raddle.lab import Lab
    from raddle.lab.rates import parse_rates

    Lab.up(hosts=hosts, rate=rate, rates=parse_rates(rate_of or []), name=name)
    status(name, as_json)


@app.command("exec")
def execute(
    host: Annotated[int, typer.Argument(metavar="HOST", help="Number of the host: 0, 1, ....")],
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="The command to run.")
    ],
    name: Name = DEFAULT,
) -> None:
    """Run a command on a host; its exit code is passed on."""
    from raddle.lab import Lab

    argv = Lab.find(name).command(host, command)
    os.execv(argv[0], argv)


@app.command()
def status(
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the lab; without it, all labs are shown."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show hosts, addresses, rates, and bytes sent and received."""
    from raddle.lab.commands import check_system
    from raddle.lab.status import host_rows, labs
    from raddle.reports.lab_hosts import show_hosts

    check_system()
    names = labs() if name is None else [name]
    rows = [row for lab in names for row in host_rows(lab)]
    if name is not None and not rows:
        raise InputError(
            f"there is no lab '{name}': see `raddle lab status` for those that are up."
        )
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        show_hosts(rows)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def run(
    context: typer.Context,
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan file.")],
    steps: Annotated[int | None, typer.Option(metavar="K", min=1, help="Training steps.")] = None,
    per_host: Annotated[int, typer.Option(metavar="N", help="Ranks on each host.")] = 1,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds after which the run is ended.")
    ] = 3600,
    name: Name = DEFAULT,
) -> None:
    """Run a plan on all hosts; further options, such as --seed 1, go to `python -m raddle.runtime`."""
    from raddle.lab import Lab, LaunchError

    if not pathlib.Path(plan).is_file():
        raise InputError(f"there is no plan '{plan}': make it with `raddle plan`.")
    end_by_sigterm()  # the commands on the hosts end too
    lab, options = Lab.find(name), context.args
    try:
        lab.run(plan, *options, steps=steps, per_host=per_host, timeout=timeout, show=True)
    except LaunchError as error:
        print(f"raddle: {error}", file=sys.stderr)
        raise typer.Exit(_exit_code(error)) from None


@app.command()
def down(name: Name = DEFAULT, as_json: Json = False) -> None:
    """End the processes on the hosts, and remove the hosts. It is no error if there are none."""
    from raddle.lab.commands import check_system
    from raddle.lab.names import check_name
    from raddle.lab.namespaces import remove
    from raddle.reports.lab_hosts import show_removed

    check_system()
    removed, ended = remove(check_name(name))
    if as_json:
        result = {"lab": name, "removed": removed, "ended": sorted(ended)}
        print(json.dumps(result, indent=2))
    else:
        show_removed(name, removed, ended)


def _exit_code(error: "LaunchError") -> int:
    """Return the exit code of the first host that failed; 124 for a timeout, as timeout(1) does.

    A host ended by signal N gives 128 + N, as in a shell.
    """
    if error.timed_out:
        return 124
    code = next(code for code in error.codes.values() if code != 0)
    return code if code > 0 else 128 - code
