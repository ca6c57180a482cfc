"""Defines the parts of a cluster: devices, the link inside a node, the network between nodes.

The keys of a cluster file have the same names as these fields; description.py lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

# "tf32": float32 values that are multiplied by tensor cores, with the mantissa rounded to 10 bits
DTYPES = ("float64", "float32", "tf32", "bfloat16", "float16")

# Assumed efficiencies, used where nothing was measured: the fraction of the peak FLOP/s that large
# matrix products, convolutions and attentions reach; "memory": the fraction of the memory bandwidth that
# elementwise operators reach, "fused": that compiled ones reach (Device.compile).
# A measured family may have more than 1: FLOPs are counted by the definition
# of an operator, and Winograd's algorithm computes a convolution of 3 x 3 with up to 4 x fewer.
EFFICIENCY: Mapping[str, float] = {
    "matmul": 0.6, "conv": 0.5, "attention": 0.35, "memory": 0.75, "fused": 0.75
}  # fmt: skip

# Memory that a device's libraries allocate besides tensors. "conv": while a convolution runs, as a multiple
# of the bytes of its input and output, which it copies into another layout in eager mode;
# "matmul": bytes that stay allocated.
WORKSPACE: Mapping[str, float] = {"conv": 0.0, "matmul": 0.0}

# Host overhead: the seconds that communication takes from the device itself, as on a CPU (0 on a GPU). It
# counts at both ends: per message, per slice of a parameter, per all-reduce ("sum"), and per byte of these.
# "collective" is not a time but a share: by how much a running collective slows computing. GPUs have it
# too, as a collective uses their memory and cores. A device loses this share of the collective's seconds.
HOST_OVERHEAD: Mapping[str, float] = {
    "message": 0.0, "slice": 0.0, "byte": 0.0, "sum": 0.0, "collective": 0.0
}  # fmt: skip


@dataclass(frozen=True)
class Device:
    """A device that computes, such as a GPU. All devices of a kind have the same properties."""

    kind: str  # a name, as "h100"
    node: int  # the number of its node; 0 in a preset or description, set by `build_cluster`
    flops: Mapping[str, float] = field(hash=False)  # peak FLOP/s by dtype; float32 is required
    memory: int  # bytes
    bandwidth: float  # of its memory, in bytes/s
    overhead: float = 5e-6  # fixed seconds per operator, as a kernel launch takes
    # Keys that are left out have the values of EFFICIENCY, WORKSPACE and HOST_OVERHEAD.
    efficiency: Mapping[str, float] = field(default_factory=dict, hash=False)
    workspace: Mapping[str, float] = field(default_factory=dict, hash=False)
    host_overhead: Mapping[str, float] = field(default_factory=dict, hash=False)
    # Seconds that the host needs to start an operator in eager mode: an operator takes at least as long.
    launch: float = 0.0
    compile: bool = False  # torch.compile fuses what the device computes (graph/fusion.py)

    def __post_init__(self) -> None:
        object.__setattr__(self, "flops", dict(self.flops))
        object.__setattr__(self, "workspace", {**WORKSPACE, **self.workspace})
        object.__setattr__(self, "host_overhead", {**HOST_OVERHEAD, **self.host_overhead})
        object.__setattr__(self, "efficiency", {**EFFICIENCY, **self.efficiency})

    def peak(self, dtype: str) -> float:
        """Returns the peak FLOP/s in `dtype`; if it is not given, that of float32, or half for float64."""
        fraction = 0.5 if dtype == "float64" else 1.0
        return self.flops.get(dtype, fraction * self.flops["float32"])


@dataclass(frozen=True)
class Group:
    """How consecutive devices of a node form groups, and the link that joins the devices of a group.

    Example: 8 GPUs in pairs, each pair joined by an NVLink bridge, and all 8 by PCIe: size 2.
    """

    size: int  # devices of a group; the last group of a node may have fewer
    bandwidth: float  # bytes/s in each direction, from a device to the others of its group
    latency: float  # seconds
    duplex: bool = True  # False: only one direction at a time
    # True: a group is a switch, whose devices share one uplink to other groups. False: a group is a bridge,
    # as an NVLink pair has one; each device also has its own port to the link of the node.
    uplink: bool = False


@dataclass(frozen=True)
class Link:
    """The link that joins the devices of a node; with groups, the link between the groups."""

    bandwidth: float  # bytes/s in each direction
    latency: float  # seconds
    duplex: bool = True  # False: only one direction at a time
    shared: bool = False  # True: one bus for the whole node; False: a port for each device
    efficiency: float = (
        1.0  # the fraction of the bandwidths that data gets; headers take the remainder
    )
    groups: Group | None = None

    @property
    def rate(self) -> float:
        """Bytes/s of data."""
        return self.bandwidth * self.efficiency


@dataclass(frozen=True)
class Network:
    """The network adapters (NICs) with which a node reaches the other nodes, and the switches between."""

    bandwidth: float  # bytes/s of a NIC in each direction
    latency: float  # seconds, from end to end
    duplex: bool = True  # False: only one direction at a time
    per_device: bool = False  # True: a NIC for each device; False: as many as `adapters`
    efficiency: float = 1.0  # the fraction of the bandwidth that data gets
    adapters: int = 1  # NICs of the node; consecutive devices share one
    leaf: int = 0  # nodes below each leaf switch; 0: one switch for all nodes
    # Of a leaf switch: the bandwidth of its links to nodes, divided by that of its links to the spine. 1:
    # the network is non-blocking.
    oversubscription: int = 1

    @property
    def rate(self) -> float:
        """Bytes/s of data."""
        return self.bandwidth * self.efficiency

    def adapter(self, i: int, count: int) -> int:
        """Returns the number of the NIC that device i of a node with `count` devices uses."""
        return i if self.per_device else i * min(self.adapters, count) // count


def link_dict(link: Group | Link | Network) -> dict[str, Any]:
    """Returns a link as plain data with the keys of a cluster file.

    The keys in `always` are written even with their defaults, the others only with another value.
    """
    always = ("size", "bandwidth", "latency", "duplex", "shared", "per_device", "uplink")
    data = {}
    for part in fields(link):
        value = getattr(link, part.name)
        if part.name in always or value != part.default:
            data[part.name] = link_dict(value) if isinstance(value, Group) else value
    return data


class Library(str, Enum):
    """The communication library of a cluster. It decides the algorithms of collectives (costs/)."""

    PLAIN = "plain"  # textbook algorithms with the latencies of the links, as for gloo
    NCCL = "nccl"  # NCCL's algorithms and protocols


@dataclass(frozen=True)
class Collectives:
    """How collectives run on a cluster: the library, and whether switches reduce."""

    library: Library = Library.PLAIN
    nvls: bool = False  # NVSwitches reduce and multicast inside a node (NVLink SHARP)
    sharp: bool = False  # the switches between nodes reduce too (InfiniBand SHARP)


PLAIN = Collectives()

# A node: its devices; the link between them (None only if there is one device); its network adapters (None
# only if the cluster has one node).
Node = tuple[list[Device], Link | None, Network | None]
