"""What communication takes from the devices themselves: a CPU copies, packs and wakes up for each message.

A device that does this itself does it in the program's order, between what it computes: a message waits for
what its source did before, and whoever first waits for it at its target takes it in.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from raddle.clusters import Cluster, Device


@register_jitable
def host_seconds(fixed: Any, per_byte: Any, nbytes: Any) -> Any:
    """What a message or a sum takes from a device, and what each of the bytes that it handles takes."""
    return fixed + per_byte * nbytes


@register_jitable
def all_reduce_bytes_per_member(members: Any, nbytes: Any) -> Any:
    """Bytes that one member of an all-reduce sends and receives: a ring does both with as much."""
    return 4 * (members - 1) / members * nbytes


def has_host_overhead(cluster: Cluster) -> bool:
    """Whether communication takes anything from the devices of a cluster."""
    return any(any(d.host_overhead.values()) for d in set(cluster.devices))


def message_host_seconds(device: Device, nbytes: int, *, sliced: bool = False) -> float:
    """One end of a message, or of a slice of a parameter."""
    overhead = device.host_overhead
    return float(host_seconds(overhead["slice" if sliced else "message"], overhead["byte"], nbytes))


def all_reduce_host_seconds(device: Device, members: int, nbytes: int) -> float:
    """To take part in an all-reduce."""
    overhead = device.host_overhead
    return float(
        host_seconds(
            overhead["sum"], overhead["byte"], all_reduce_bytes_per_member(members, nbytes)
        )
    )
