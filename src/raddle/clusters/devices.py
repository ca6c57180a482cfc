"""The parts of a cluster: devices, the link that joins the devices of a node, the network between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DTYPES = ("float64", "float32", "bfloat16", "float16")

# Assumed efficiencies, used where nothing was measured: the fraction of the peak FLOP/s that large
# matrix products, convolutions and attentions reach; "memory": the fraction of the memory bandwidth that
# elementwise operators reach. A measured family may have more than 1: FLOPs are counted by the definition
# of an operator, and Winograd's algorithm computes a convolution of 3 x 3 with up to 4 x fewer.
EFFICIENCY: Mapping[str, float] = {"matmul": 0.6, "conv": 0.5, "attention": 0.35, "memory": 0.75}

# Memory that a device's libraries allocate besides tensors. "conv": while a convolution runs, as a multiple
# of the bytes of its input and output; "matmul": bytes that stay allocated.
WORKSPACE: Mapping[str, float] = {"conv": 0.0, "matmul": 0.0}

# Host overhead: the seconds that communication takes from the device itself, as on a CPU (0 on a GPU). It
# counts at both ends: per message, per slice of a parameter, per all-reduce ("sum"), and per byte of these.
# "collective" is no time but a share: by how much a running collective slows computing, on GPUs too, whose
# memory and cores it uses. A device computes for this share of the collective's seconds less.
HOST_OVERHEAD: Mapping[str, float] = {
    "message": 0.0, "slice": 0.0, "byte": 0.0, "sum": 0.0, "collective": 0.0
}  # fmt: skip


@dataclass(frozen=True)
class Device:
    """One device. All devices of a kind have the same properties."""

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "flops", dict(self.flops))
        object.__setattr__(self, "workspace", {**WORKSPACE, **self.workspace})
        object.__setattr__(self, "host_overhead", {**HOST_OVERHEAD, **self.host_overhead})
        object.__setattr__(self, "efficiency", {**EFFICIENCY, **self.efficiency})

    def peak(self, dtype: str) -> float:
        """Peak FLOP/s in `dtype`; by default that of float32, and half of it for float64."""
        share = 0.5 if dtype == "float64" else 1.0
        return self.flops.get(dtype, share * self.flops["float32"])


@dataclass(frozen=True)
class Link:
    """The link that joins the devices of a node."""

    bandwidth: float  # bytes/s in each direction
    latency: float  # seconds
    duplex: bool = True  # False: only one direction at a time
    shared: bool = False  # True: one bus for the whole node; False: a port for each device


@dataclass(frozen=True)
class Network:
    """The network adapter (NIC) with which a node reaches the other nodes."""

    bandwidth: float  # bytes/s of a NIC in each direction
    latency: float  # seconds, from end to end
    duplex: bool = True  # False: only one direction at a time
    per_device: bool = False  # True: a NIC for each device; False: one for the node


# Devices of a node; the link between them (None only if there is one device); the NIC (None only if the
# cluster has one node).
Node = tuple[list[Device], Link | None, Network | None]
