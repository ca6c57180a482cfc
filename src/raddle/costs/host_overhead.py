"""Host overhead: the seconds that communication takes from the device itself.

A CPU that computes also packs, copies and wakes up for every message. It does so in the program's order,
between its computations. The sender spends this time before a message leaves. The receiver spends it before
the first instruction that needs the message. GPUs have no host overhead here.

Device.host_overhead has the seconds by key: "message" per message, "slice" per message with a slice of a
parameter, "sum" per all-reduce, and "byte" per byte of all of these. All-gathers and reduce-scatters are
made of messages (transport/shard_messages.py). The key "collective" says how much a running collective
slows the computing of its members: the share of the collective's seconds that it takes from each of them.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from raddle.clusters import Cluster, Device
from raddle.program.collective_kind import Collective


@register_jitable
def host_seconds(fixed: Any, per_byte: Any, nbytes: Any) -> Any:
    """Returns the host overhead, in seconds, of one message or all-reduce.

    nbytes: the bytes that the device sends or receives.
    """
    return fixed + per_byte * nbytes


@register_jitable
def collective_member_seconds(
    all_reduces: Any, per_sum: Any, per_message: Any, per_byte: Any, slowdown: Any, members: Any,
    nbytes: Any, nanoseconds: Any,
) -> Any:  # fmt: skip
    """Returns the seconds that a collective takes from a member.

    all_reduces: False for an all-gather or reduce-scatter: then the member sends a message to each other
    member, and receives one. In a ring all-reduce it sends twice as many bytes. per_sum, per_message and
    per_byte are the device's host overheads for "sum", "message" and "byte". slowdown is that for
    "collective": the share of the time of the collective that it takes from computing. members: their
    number. nbytes: of the full buffer. nanoseconds: how long the collective runs.
    """
    sent_and_received = 2 * (members - 1) / members * nbytes
    slowed = slowdown * (nanoseconds * 1e-9)
    if all_reduces:
        return host_seconds(per_sum, per_byte, 2 * sent_and_received) + slowed
    return host_seconds(2 * (members - 1) * per_message, per_byte, sent_and_received) + slowed


def has_host_overhead(cluster: Cluster) -> bool:
    """Returns whether any device of a cluster has host overhead."""
    return any(any(d.host_overhead.values()) for d in set(cluster.devices))


def message_host_seconds(device: Device, nbytes: int, *, sliced: bool = False) -> float:
    """Returns the host overhead, in seconds, of sending one message, or of receiving it.

    sliced: whether the message has a slice of a parameter.
    """
    overhead = device.host_overhead
    return float(host_seconds(overhead["slice" if sliced else "message"], overhead["byte"], nbytes))


def collective_host_seconds(
    device: Device, kind: Collective, members: int, nbytes: int, nanoseconds: int
) -> float:
    """Returns the host overhead, in seconds, of one member of an all-reduce, all-gather or reduce-scatter.

    nanoseconds: how long the collective runs.
    """
    overhead, all_reduces = device.host_overhead, kind is Collective.ALL_REDUCE
    return float(
        collective_member_seconds(
            all_reduces,
            overhead["sum"],
            overhead["message"],
            overhead["byte"],
            overhead["collective"],
            members,
            nbytes,
            nanoseconds,
        )
    )
