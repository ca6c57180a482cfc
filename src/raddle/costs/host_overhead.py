"""What communication takes from the devices themselves: a CPU copies, packs and wakes up for each message.

A device that does this itself does it in the program's order, between what it computes: a message waits for
what its source did before, and whoever first waits for it at its target takes it in.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from raddle.clusters import Cluster, Device


@register_jitable
def host_seconds(each: Any, byte: Any, nbytes: Any) -> Any:
    """What a message or a sum takes from a device, and what each of the bytes that it handles takes."""
    return each + byte * nbytes


@register_jitable
def bytes_in_sum(members: Any, nbytes: Any) -> Any:
    """Bytes that one member of an all-reduce sends and receives: a ring does both with as much."""
    return 4 * (members - 1) / members * nbytes


def handles(cluster: Cluster) -> bool:
    """Whether communication takes anything from the devices of a cluster."""
    return any(any(d.handling.values()) for d in set(cluster.devices))


def message_seconds(device: Device, nbytes: int, *, sliced: bool = False) -> float:
    """One end of a message, or of a slice of a parameter."""
    own = device.handling
    return float(host_seconds(own["slice" if sliced else "message"], own["byte"], nbytes))


def sum_seconds(device: Device, members: int, nbytes: int) -> float:
    """To take part in an all-reduce."""
    own = device.handling
    return float(host_seconds(own["sum"], own["byte"], bytes_in_sum(members, nbytes)))
