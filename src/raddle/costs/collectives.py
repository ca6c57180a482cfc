"""Seconds and bytes of collectives: all-reduce, all-gather, reduce-scatter, all-to-all and broadcast.

Every algorithm of a collective library takes *fixed seconds, and seconds per byte*: a line over the bytes.
A library takes the fastest algorithm for the bytes at hand, and so do these functions. The lines of a group
of devices are computed once (`collective_lines`); `fastest_seconds` then needs only them, so that
numba-compiled functions can call it on an array of lines.

`nbytes` is always the size of a full buffer on one member; program/collective_kind.py says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba.extending import register_jitable

from raddle.clusters import Cluster
from raddle.costs.collective_algorithms import algorithms
from raddle.costs.line import Line
from raddle.program.collective_kind import Collective


def collective_lines(cluster: Cluster, kind: Collective, devices: Sequence[int]) -> list[Line]:
    """Returns the line of each algorithm that is fastest for some number of bytes, sorted by fixed seconds.

    A line is (fixed seconds, seconds per byte). devices: the members, as indices into cluster.devices;
    their order does not matter.
    """
    if len(devices) < 2:
        return [Line(0.0, 0.0)]
    lines: list[Line] = []
    for line in sorted(algorithms(cluster, kind, devices).values()):
        # sorted by fixed seconds: a line that is not faster per byte than an earlier one never wins
        if not lines or line.per_byte < lines[-1].per_byte:
            lines.append(line)
    return lines


@register_jitable
def fastest_seconds(lines: Any, nbytes: Any) -> Any:
    """Returns the seconds of the fastest algorithm; lines: rows of (fixed seconds, seconds per byte)."""
    best = lines[0][0] + nbytes * lines[0][1]
    for k in range(1, len(lines)):
        best = min(best, lines[k][0] + nbytes * lines[k][1])
    return best


def collective_seconds(
    cluster: Cluster, kind: Collective, devices: Sequence[int], nbytes: float
) -> float:
    """Returns the seconds of a collective among devices, given as indices into cluster.devices."""
    return float(fastest_seconds(collective_lines(cluster, kind, devices), nbytes))


def all_reduce_seconds(cluster: Cluster, devices: Sequence[int], nbytes: float) -> float:
    """Returns the seconds of an all-reduce among devices, given as indices into cluster.devices."""
    return collective_seconds(cluster, Collective.ALL_REDUCE, devices, nbytes)


def collective_bytes(kind: Collective, members: int, nbytes: int) -> int:
    """Returns the bytes that all members of a collective together send, by a ring or by single messages."""
    if kind is Collective.ALL_TO_ALL:
        return (members - 1) * nbytes  # each member keeps its share of nbytes, and sends the others
    rounds = 2 if kind is Collective.ALL_REDUCE else 1
    return rounds * (members - 1) * nbytes


def collective_bytes_by_device(kind: Collective, members: int, nbytes: int) -> list[int]:
    """Returns the bytes that each member sends; integers that add up to `collective_bytes`.

    A broadcast's are those of a chain: every member but the last sends the buffer on.
    """
    if kind is Collective.BROADCAST:
        return [nbytes] * (members - 1) + [0]
    return _shares(collective_bytes(kind, members, nbytes), members)


def _shares(total: int, count: int) -> list[int]:
    """Returns `count` integers that add up to `total` and differ by one at most."""
    return [total * (i + 1) // count - total * i // count for i in range(count)]


def server_bytes(count: int, nbytes: int) -> int:
    """Returns the bytes, in both directions, between `count` devices and a server on another device.

    nbytes: of the parameter. The papers OptCNN and FlexFlow count the bytes of synchronisation in this way.
    """
    return 2 * count * nbytes


def all_reduce_bytes(count: int, nbytes: int) -> int:
    """Returns the bytes that all `count` devices together send in a ring all-reduce of `nbytes`."""
    return collective_bytes(Collective.ALL_REDUCE, count, nbytes)


def all_reduce_bytes_by_device(count: int, nbytes: int) -> list[int]:
    """Returns the bytes that each of `count` devices sends; integers that add up to `all_reduce_bytes`."""
    return collective_bytes_by_device(Collective.ALL_REDUCE, count, nbytes)
