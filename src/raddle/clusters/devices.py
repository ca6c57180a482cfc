"""What a cluster is made of: devices, the link that joins those of a node, the network between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DTYPES = ("float64", "float32", "bfloat16", "float16")

# Assumed where nothing was measured: shares of the peak that well-shaped operators of a family reach, and
# for "memory" the share of the memory's bandwidth that elementwise operators reach.
EFFICIENCY: Mapping[str, float] = {"matmul": 0.6, "conv": 0.5, "attention": 0.35, "memory": 0.75}

# What a device's libraries take besides tensors: of a convolution, a multiple of the bytes of its input and
# output while it runs; for products, bytes that they keep.
WORKSPACE: Mapping[str, float] = {"conv": 0.0, "matmul": 0.0}

# What communication takes from a device that has to do it itself, as CPUs do, in seconds: each end of a
# message, of a slice of a parameter, and each byte of them; and to take part in a sum.
HOST_OVERHEAD: Mapping[str, float] = {"message": 0.0, "slice": 0.0, "byte": 0.0, "sum": 0.0}


@dataclass(frozen=True)
class Device:
    """One device: what it computes and holds. Devices of a kind have the same figures."""

    kind: str
    node: int
    flops: Mapping[str, float] = field(hash=False)  # peak FLOP/s by dtype: float32 at least
    memory: int  # bytes
    bandwidth: float  # of its memory, bytes/s
    overhead: float = 5e-6  # seconds an operator costs before it computes anything
    efficiency: Mapping[str, float] = field(default_factory=dict, hash=False)  # over EFFICIENCY
    workspace: Mapping[str, float] = field(default_factory=dict, hash=False)  # over WORKSPACE
    host_overhead: Mapping[str, float] = field(default_factory=dict, hash=False)  # over HANDLING

    def __post_init__(self) -> None:
        object.__setattr__(self, "flops", dict(self.flops))
        object.__setattr__(self, "workspace", {**WORKSPACE, **self.workspace})
        object.__setattr__(self, "host_overhead", {**HOST_OVERHEAD, **self.host_overhead})
        object.__setattr__(self, "efficiency", {**EFFICIENCY, **self.efficiency})

    def peak(self, dtype: str) -> float:
        """FLOP/s in `dtype`; without a figure of its own, float32's, and half of it for float64."""
        share = 0.5 if dtype == "float64" else 1.0
        return self.flops.get(dtype, share * self.flops["float32"])


@dataclass(frozen=True)
class Link:
    """What joins the devices of a node."""

    bandwidth: float  # bytes/s, each way
    latency: float  # seconds
    duplex: bool = True
    shared: bool = False  # one bus for the whole node, and not a port a device


@dataclass(frozen=True)
class Network:
    """How a node reaches the other nodes."""

    bandwidth: float  # bytes/s of a NIC, each way
    latency: float  # seconds, from end to end
    duplex: bool = True
    per_device: bool = False  # a NIC a device, and not one a node


Node = tuple[list[Device], Link | None, Network | None]
