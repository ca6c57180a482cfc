"""A preset, and functions that write down what a data sheet says."""

from __future__ import annotations

from dataclasses import dataclass

from raddle.clusters.devices import PLAIN, Collectives, Device, Link, Network

GB = 1e9
GBIT = 1e9 / 8  # Gbit/s in bytes/s
T = 1e12  # tera


@dataclass(frozen=True)
class Preset:
    """A named cluster of equal nodes; its size may be chosen, as in "p100:2x4"."""

    name: str
    nodes: int  # the default number of nodes
    per_node: int  # devices of a node
    device: Device
    link: Link | None  # inside a node; may be None if a node has one device
    network: Network  # between nodes
    source: str  # where the numbers come from
    collectives: Collectives = PLAIN


def flops_by_dtype(
    float64: float, float32: float, bfloat16: float, float16: float, tf32: float | None = None
) -> dict[str, float]:
    """Returns the peak FLOP/s by dtype; the arguments are in TFLOP/s. tf32: None: the device has none."""
    return {
        "float64": float64 * T,
        "float32": float32 * T,
        **({} if tf32 is None else {"tf32": tf32 * T}),
        "bfloat16": bfloat16 * T,
        "float16": float16 * T,
    }


def gpu(kind: str, flops: dict[str, float], memory: float, bandwidth: float) -> Device:
    """Returns a GPU; memory in GB, bandwidth in GB/s. Its node is 0 until `build_cluster` sets it."""
    return Device(kind, 0, flops, round(memory * GB), bandwidth * GB)
