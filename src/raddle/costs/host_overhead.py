"""Host overhead: the seconds that communication takes from the device itself.

A CPU that computes also packs, copies and wakes up for every message. It does so in the program's order,
between its computations. The sender spends this time before a message leaves. The receiver spends it before
the first instruction that needs the message. GPUs have no host overhead here.

Device.host_overhead has the seconds by key: "message" per message, "slice" per message with a slice of a
parameter, "sum" per all-reduce, and "byte" per byte of all of these. All-gathers and reduce-scatters are
made of messages (transport/shard_messages.py).
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from raddle.clusters import Cluster, Device
from raddle.program.collective_kind import Collective


@register_jitable
def host_seconds(fixed: Any, per_byte: Any, nbytes: Any) -> Any:
    """Host overhead of one message or all-reduce; nbytes: the bytes that the device sends or receives."""
    return fixed + per_byte * nbytes


@register_jitable
def collective_member_seconds(
    all_reduces: Any, per_sum: Any, per_message: Any, per_byte: Any, members: Any, nbytes: Any
) -> Any:
    """Host overhead of one member of a collective; nbytes: of the full buffer.

    all_reduces: False for an all-gather or reduce-scatter: then the member sends a message to each other
    member, and receives one. In a ring all-reduce it sends twice as many bytes.
    """
    sent_and_received = 2 * (members - 1) / members * nbytes
    if all_reduces:
        return host_seconds(per_sum, per_byte, 2 * sent_and_received)
    return host_seconds(2 * (members - 1) * per_message, per_byte, sent_and_received)


def has_host_overhead(cluster: Cluster) -> bool:
    """Whether any device of a cluster has host overhead."""
    return any(any(d.host_overhead.values()) for d in set(cluster.devices))


def message_host_seconds(device: Device, nbytes: int, *, sliced: bool = False) -> float:
    """Host overhead of sending, or of receiving, one message; sliced: it carries a slice of a parameter."""
    overhead = device.host_overhead
    return float(host_seconds(overhead["slice" if sliced else "message"], overhead["byte"], nbytes))


def collective_host_seconds(device: Device, kind: Collective, members: int, nbytes: int) -> float:
    """Host overhead of one member of an all-reduce, all-gather or reduce-scatter."""
    overhead, all_reduces = device.host_overhead, kind is Collective.ALL_REDUCE
    return float(
        collective_member_seconds(
            all_reduces, overhead["sum"], overhead["message"], overhead["byte"], members, nbytes
        )
    )
