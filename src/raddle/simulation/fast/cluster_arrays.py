"""Turns computations and messages into rows of devices, links and nanoseconds, with a cluster as arrays.

This module is a part of the fast simulation, with which searches time thousands of plans a second
(evaluator.py).

The columns of compute rows and of message rows are listed in arrays.Arena. `sliced`: the messages carry
slices of parameters, which have another host overhead than other messages.
"""

# d: device, s: source, t: target

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.compute import memory_pass_seconds, merge_rate, update_rate
from raddle.costs.links import occupied_seconds
from raddle.costs.profile import Profile
from raddle.program.program import Message
from raddle.program.value_holders import in_sending_order
from raddle.simulation.fast.network import (
    RingNumbers,
    build_routes,
    host_overhead_arrays,
    message_host_nanoseconds,
)
from raddle.simulation.nanoseconds import nanoseconds

Array = np.ndarray


class ClusterArrays:
    """The devices and links of a cluster as arrays."""

    def __init__(self, cluster: Cluster, profile: Profile | None = None) -> None:
        self.count = len(cluster.devices)
        self.routes, self.rings, self.host_overhead = (
            build_routes(cluster),
            RingNumbers(cluster),
            host_overhead_arrays(cluster),
        )
        # Kinds of devices, as (kind, an example device), and by device the index of its kind.
        self.kinds = sorted({d.kind: d for d in cluster.devices}.items())
        kinds = [kind for kind, _ in self.kinds]
        self.kind_of = np.array([kinds.index(d.kind) for d in cluster.devices])
        # By device, the bytes/s and the fixed seconds (not the host overhead) of merges and of updates.
        self.merge_rates = np.array([merge_rate(d) for d in cluster.devices])
        self.update_rates = np.array([update_rate(d, profile) for d in cluster.devices])

    def compute_rows(self, devices: Array, seconds: Array) -> Array:
        """Returns compute rows (device, nanoseconds), one for each device.

        devices, seconds: by tile; the seconds of a device's tiles add up.
        """
        used, inverse = np.unique(devices, return_inverse=True)
        total = np.zeros(len(used))
        # np.add.at adds in the order of the tiles, so that rounding is the same as in the full simulation.
        np.add.at(total, inverse, seconds)
        return np.stack([used, nanoseconds(total)], axis=1)  # type: ignore[arg-type]

    def memory_pass_rows(
        self, devices: Sequence[Sequence[int]], nbytes: Sequence[int], rates: Array
    ) -> Array:
        """Returns compute rows of memory passes: each of devices[k] reads or writes nbytes[k] of memory.

        rates: `merge_rates` or `update_rates`.
        """
        flat = np.array([d for group in devices for d in group], np.int64)
        amount = np.repeat(np.asarray(nbytes, np.float64), [len(members) for members in devices])
        return self.compute_rows(flat, memory_pass_seconds(amount, *rates[flat].T))

    def ordered_message_rows(
        self, messages: Sequence[tuple[Message, int]], *, sliced: bool = False
    ) -> Array:
        """Returns message rows of (message, bytes) pairs, in the order in which a program sends them."""
        if not messages:
            return np.zeros((0, 8), np.int64)  # 8: the columns of a message row
        nbytes_of = dict(messages)
        ordered = in_sending_order(nbytes_of, self.count)
        s, t = np.array([m[:2] for m in ordered]).T  # m[:2]: source, target
        nbytes = np.array([nbytes_of[m] for m in ordered])
        seconds = occupied_seconds(self.routes.bandwidth[s, t], nbytes)
        return self.message_rows(s, t, nanoseconds(seconds), nbytes, sliced=sliced)

    def message_rows(
        self, s: Array, t: Array, ns: Array, nbytes: Array, *, sliced: bool = False
    ) -> Array:
        """Returns message rows (see arrays.Arena) of messages from s to t that hold their links for `ns`.

        All arguments are arrays by message.
        """
        links = self.routes.first[s, t], self.routes.second[s, t]
        overheads = [
            message_host_nanoseconds(self.host_overhead, d, nbytes, sliced=sliced) for d in (s, t)
        ]
        return np.stack([s, t, ns, *links, *overheads, self.routes.latency[s, t]], axis=1)
