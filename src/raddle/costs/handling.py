"""What communication takes from the devices themselves: a CPU copies, packs and wakes up for each message.

A device that does this itself does it in the program's order, between what it computes: a message waits for
what its source did before, and whoever first waits for it at its target takes it in.
"""

from __future__ import annotations

from raddle.clusters import Cluster, Device


def handles(cluster: Cluster) -> bool:
    """Whether communication takes anything from the devices of a cluster."""
    return any(any(d.handling.values()) for d in set(cluster.devices))


def message_seconds(device: Device, nbytes: int, *, sliced: bool = False) -> float:
    """One end of a message, or of a slice of a parameter."""
    own = device.handling
    return own["slice" if sliced else "message"] + own["byte"] * nbytes


def sum_seconds(device: Device, members: int, nbytes: int) -> float:
    """To take part in an all-reduce: a ring sends and receives as much."""
    own = device.handling
    return own["sum"] + own["byte"] * (4 * (members - 1) / members * nbytes)
