"""Host overhead: the seconds that communication takes from the device itself.

A CPU that computes also packs, copies and wakes up for every message. It does so in the program's order,
between its computations. The sender spends this time before a message leaves. The receiver spends it before
the first instruction that needs the message. GPUs have no host overhead here.

Device.host_overhead has the seconds by key: "message" per message, "slice" per message with a slice of a
parameter, "sum" per all-reduce, and "byte" per byte of all of these. Its "collective" is by how much a
running collective slows the computing of its members: the share of its seconds that it takes from them.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from raddle.clusters import Cluster, Device


@register_jitable
def host_seconds(fixed: Any, per_byte: Any, nbytes: Any) -> Any:
    """Host overhead of one message or all-reduce; nbytes: the bytes that the device sends or receives."""
    return fixed + per_byte * nbytes


@register_jitable
def all_reduce_bytes_per_member(members: Any, nbytes: Any) -> Any:
    """Bytes that one member of a ring all-reduce sends plus those that it receives; both are equal."""
    return 4 * (members - 1) / members * nbytes


@register_jitable
def all_reduce_device_seconds(
    fixed: Any, per_byte: Any, slowdown: Any, nbytes: Any, nanoseconds: Any
) -> Any:
    """Seconds that an all-reduce takes from a member.

    nbytes: what it sends and receives. nanoseconds: how long the all-reduce runs.
    """
    return host_seconds(fixed, per_byte, nbytes) + slowdown * (nanoseconds * 1e-9)


def has_host_overhead(cluster: Cluster) -> bool:
    """Whether any device of a cluster has host overhead."""
    return any(any(d.host_overhead.values()) for d in set(cluster.devices))


def message_host_seconds(device: Device, nbytes: int, *, sliced: bool = False) -> float:
    """Host overhead of sending, or of receiving, one message; sliced: it carries a slice of a parameter."""
    overhead = device.host_overhead
    return float(host_seconds(overhead["slice" if sliced else "message"], overhead["byte"], nbytes))


def all_reduce_host_seconds(device: Device, members: int, nbytes: int, nanoseconds: int) -> float:
    """Host overhead of one member of an all-reduce, which runs for `nanoseconds`."""
    overhead = device.host_overhead
    sent = all_reduce_bytes_per_member(members, nbytes)
    return float(
        all_reduce_device_seconds(
            overhead["sum"], overhead["byte"], overhead["collective"], sent, nanoseconds
        )
    )
