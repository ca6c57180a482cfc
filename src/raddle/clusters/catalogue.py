"""Declares the presets: clusters of the papers, clusters of today, and this machine ("local").

Peak FLOP/s are those of the data sheets, without sparsity. A data sheet's GB counts as 10^9 bytes: what a
card has beyond that is about what its driver and libraries occupy. A dtype without hardware support has the
peak of float32. Bandwidths of links are nominal and per direction.

Three things are assumed, and rather too slow than too fast: the efficiencies (`devices.EFFICIENCY` unless a
preset sets them), the overhead of an operator, and the latencies, which include the software that starts a
message.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from raddle.clusters import further_gpus
from raddle.clusters.devices import (
    Collectives,
    Device,
    Library,
    Link,
    Network,
    link_dict,
)
from raddle.clusters.preset import GB, GBIT, Preset, T, flops_by_dtype, gpu
from raddle.clusters.topology import Cluster, build_cluster

LOCAL = "local"  # the name of the preset for this machine


def presets() -> list[dict[str, Any]]:
    """Returns all presets as plain data, in bytes, bytes/s, FLOP/s and seconds.

    The last is `local`, with the cores and the memory of this machine.
    """
    rows = [
        _row(p.name, p.nodes, p.per_node, p.device, p.link, p.network, p.source)
        for p in PRESETS.values()
    ]
    here = local(2)
    return [
        *rows,
        _row(LOCAL, 1, 2, here.devices[0], here.node_links[0], None, LOCAL_SOURCE),
    ]


def _row(
    name: str,
    nodes: int,
    per_node: int,
    device: Device,
    link: Link | None,
    network: Network | None,
    source: str,
) -> dict[str, Any]:
    """Returns one preset as plain data."""
    return {
        "name": name,
        "nodes": nodes,
        "devices_per_node": per_node,
        "memory": device.memory,
        "memory_bandwidth": device.bandwidth,
        "flops": dict(device.flops),
        "efficiency": dict(device.efficiency),
        "overhead": device.overhead,
        "link": link_dict(link) if link is not None else None,
        "network": link_dict(network) if network is not None else None,
        "source": source,
    }


_P100 = Preset(
    name="p100",
    nodes=4,
    per_node=4,
    # Tesla P100 SXM2 data sheet: 5.3, 10.6 and 21.2 TFLOP/s in 64, 32 and 16 bits; 16 GB of HBM2, 732 GB/s.
    device=gpu("p100", flops_by_dtype(5.3, 10.6, 10.6, 21.2), 16, 732),
    # NVLink 1: four links of 20 GB/s each way. Assumed: two of them serve a transfer.
    link=Link(40 * GB, 5e-6),
    # OptCNN (arXiv 1802.04924), experiments: 4 nodes of 4 P100, NVLink inside, 100 Gb/s InfiniBand between.
    network=Network(100 * GBIT, 5e-6),
    source="P100 SXM2 data sheet; cluster of OptCNN and FlexFlow",
)

_K80 = Preset(
    name="k80",
    nodes=16,
    per_node=4,
    # Tesla K80 data sheet, one of a board's two GK210: half of 2.91 and 8.74 TFLOP/s (with boost), of 24 GB
    # and of 480 GB/s.
    device=gpu("k80", flops_by_dtype(1.455, 4.37, 4.37, 4.37), 12, 240),
    # PCIe 3.0 x16: 15.75 GB/s each way. FlexFlow's nodes have GPUs that share a PCIe switch.
    link=Link(15.75 * GB, 10e-6, shared=True),
    # FlexFlow (arXiv 1807.05358), experimental setup: 16 nodes of 4 K80, 56 Gb/s InfiniBand.
    network=Network(56 * GBIT, 5e-6),
    source="K80 data sheet, per GPU; cluster of FlexFlow",
)

# The nodes of the thesis on hypergraph partitions (docs/papers.md), figure 5.1: two Xeon Platinum 8280 (28
# cores, 2.7 GHz) per node. All else is Intel's data: two AVX-512 FMA units per core, 64 operations per
# cycle in float32; six channels of DDR4-2933 per socket. The size of the memory is assumed (12 modules of
# 16 GB). The 8280 is a Cascade Lake; the presets are named after Skylake, the generation before it, which
# has the same cores.
_XEON_PEAK = 2 * 28 * 2.7e9 * 64 / T  # sockets × cores × Hz × FLOP per cycle, in TFLOP/s
_XEON = Device(
    "2x8280",
    0,  # its node, until `build_cluster` sets it
    flops_by_dtype(_XEON_PEAK / 2, _XEON_PEAK, _XEON_PEAK, _XEON_PEAK),
    192 * 10**9,
    2 * 6 * 2.933e9 * 8,  # sockets × channels × transfers per second × 8 bytes
    overhead=20e-6,
    # conv: the thesis's table 5.15 has 102,400 images of VGG-16 in 4842 s on one node at batch 512: at
    # 3 × 31 GFLOP per image (forward, and twice that for backward), 2.0 TFLOP/s, 20 % of the peak. The
    # others are assumed in proportion.
    efficiency={"matmul": 0.3, "conv": 0.2, "attention": 0.15, "memory": 0.6},
)

_SKYLAKE_10GBE = Preset(
    name="skylake-10gbe",
    nodes=4,
    per_node=1,
    device=_XEON,
    link=None,
    network=Network(10 * GBIT, 30e-6),  # the latency of TCP, assumed
    source="the hypergraph thesis's nodes; Xeon Platinum 8280 data sheet",
)

_SKYLAKE_OPA = Preset(
    name="skylake-opa",
    nodes=4,
    per_node=1,
    device=_XEON,
    link=None,
    network=Network(100 * GBIT, 5e-6),  # Omni-Path 100
    source="the hypergraph thesis's nodes; Xeon Platinum 8280 data sheet",
)

_V100 = Preset(
    name="v100",
    nodes=1,
    per_node=8,
    # V100 SXM2 data sheet: 7.8, 15.7 and (tensor cores) 125 TFLOP/s; 16 GB of HBM2, 900 GB/s.
    device=gpu("v100", flops_by_dtype(7.8, 15.7, 15.7, 125), 16, 900),
    # NVLink 2: six links of 25 GB/s each way, in a cube mesh. Assumed: two of them serve a transfer.
    link=Link(50 * GB, 5e-6),
    # One 100 Gb/s adapter per node; machines with four of them exist.
    network=Network(100 * GBIT, 5e-6),
    source="V100 SXM2 data sheet; one 100 Gb/s adapter a node",
)

_A100 = Preset(
    name="a100",
    nodes=1,
    per_node=8,
    # A100 SXM4 80 GB data sheet: 19.5 (float64, tensor cores), 19.5, 312 and (TF32) 156 TFLOP/s; 2,039
    # GB/s.
    device=gpu("a100", flops_by_dtype(19.5, 19.5, 312, 312, tf32=156), 80, 2039),
    # NVLink 3 through NVSwitch: 600 GB/s, half each way; NCCL counts 20 of a link's 25 GB/s
    link=Link(300 * GB, 5e-6, efficiency=0.8),
    # DGX A100: HDR InfiniBand for each GPU, of which nccl-tests show 24 GB/s
    network=Network(200 * GBIT, 5e-6, per_device=True, efficiency=0.96),
    source="A100 SXM4 80 GB and DGX A100 data sheets",
    collectives=Collectives(Library.NCCL),
)

# Measured on an H200 (bench/memory): cuDNN copies the input and the output of a convolution into another
# memory layout, and cuBLAS and cuBLASLt each keep 32 MiB allocated. So "conv" is 1.0 times the bytes of
# the input and the output, and "matmul" is 64 MiB (devices.WORKSPACE).
_HOPPER_WORKSPACE = {"conv": 1.0, "matmul": 64.0 * 2**20}

# Eager PyTorch needs about this long to start an operator, autograd included.
_LAUNCH = 8e-6

# NVLink 4 through NVSwitch: 900 GB/s, half each way; NCCL counts 20.6 of a link's 25 GB/s. The switches
# add up the data of collectives (NVLS). Of an NDR adapter, nccl-tests show 48 to 49 GB/s (bench/collectives
# has the sources).
_NVLINK_4 = Link(450 * GB, 5e-6, efficiency=0.824)
_NDR = Network(400 * GBIT, 5e-6, per_device=True, efficiency=0.97)
_NVLS = Collectives(Library.NCCL, nvls=True)

_H100 = Preset(
    name="h100",
    nodes=1,
    per_node=8,
    # H100 SXM5 data sheet: 67 (float64, tensor cores), 67, 989 and (TF32) 494.5 TFLOP/s; 80 GB of HBM3,
    # 3.35 TB/s. For tensor cores it states twice as much, with sparsity.
    # Efficiencies: one set, fitted to 26 published runs of FSDP (raddle reproduce mpt-fsdp), rounded.
    # memory: norms, losses and activations in eager mode move about twice the bytes of their definition.
    # attention: FlashAttention of 2023, forward and backward. collective: NCCL's kernels take
    # multiprocessors and bandwidth from the computation beside them.
    device=replace(
        gpu("h100", flops_by_dtype(67, 67, 989, 989, tf32=494.5), 80, 3350),
        efficiency={"matmul": 0.62, "attention": 0.18, "memory": 0.45, "fused": 0.6},
        launch=_LAUNCH,
        host_overhead={"collective": 0.75},
        workspace=_HOPPER_WORKSPACE,
    ),
    link=_NVLINK_4,
    network=_NDR,  # DGX H100: NDR InfiniBand for each GPU
    source="H100 SXM5 and DGX H100 data sheets; efficiencies fitted to published runs",
    collectives=_NVLS,
)

_P5 = Preset(
    name="p5",
    nodes=1,
    per_node=8,
    device=_H100.device,
    link=_NVLINK_4,
    # Amazon EC2 p5.48xlarge: 3200 Gb/s of EFA, four adapters of 100 Gb/s for each GPU. The latency is what
    # aws-ofi-nccl states for it, 75 us; the efficiency is fitted (bench/collectives).
    network=Network(400 * GBIT, 75e-6, per_device=True, efficiency=0.88),
    source="H100 SXM5 data sheet; Amazon EC2 p5.48xlarge with EFA",
    collectives=_NVLS,
)

_H200 = Preset(
    name="h200",
    nodes=1,
    per_node=8,
    # H200 SXM data sheet: the H100's peaks with 141 GB of HBM3e, 4.8 TB/s. Efficiencies: matmul is what
    # raddle probe measured on one (0.76 in float32, 0.68 in bfloat16, 0.88 in float64), rounded down. The
    # others describe steps of resnet50, vgg16, unet and gpt, eager and compiled, in float32 and bfloat16,
    # for which they were chosen, with a median error of 13 %: eager operators move more bytes than their
    # definition says.
    device=replace(
        gpu("h200", flops_by_dtype(67, 67, 989, 989, tf32=494.5), 141, 4800),
        efficiency={"matmul": 0.65, "conv": 0.5, "attention": 0.4, "memory": 0.55, "fused": 0.6},
        launch=_LAUNCH,
        workspace=_HOPPER_WORKSPACE,
    ),
    link=_NVLINK_4,
    network=_NDR,  # DGX H200: NDR InfiniBand for each GPU
    source="H200 SXM and DGX H200 data sheets; efficiencies from steps on one H200",
    collectives=_NVLS,
)

# Collects all presets above, in their order. A new preset needs no entry here.
# Those of further_gpus.py follow.
PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in [*globals().values(), *vars(further_gpus).values()]
    if isinstance(preset, Preset)
}

LOCAL_SOURCE = "assumed for the cores of this machine: raddle probe measures them"


def local(ranks: int) -> Cluster:
    """Makes the cluster of `ranks` processes on this machine that communicate over loopback.

    The number of cores and the memory are read from the machine. All other numbers are modest assumptions;
    `raddle probe` measures the real ones.
    """
    share = cores() / ranks  # cores per rank
    device = Device(
        kind=local_kind(cores(), ranks),
        node=0,
        # 32 FLOP per cycle and core in float32 (AVX2, two units) at 2.5 GHz
        flops={"float64": 40e9 * share, "float32": 80e9 * share},
        memory=memory() // ranks,
        bandwidth=10e9 * share,
        overhead=10e-6,
    )
    # gloo over loopback copies through the kernel, in one direction at a time.
    link = Link(1.5e9, 200e-6, duplex=False) if ranks > 1 else None
    return build_cluster(f"{LOCAL}:{ranks}", [([device] * ranks, link, None)])


def local_kind(count: int, ranks: int) -> str:
    """Returns the name of the device kind of a rank when `ranks` ranks share `count` cores."""
    return f"cpu-{count}/{ranks}"


def cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """Returns the bytes of memory that this process may use."""
    if not hasattr(os, "sysconf"):
        return 8 * 10**9  # assumed where the system does not say
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
