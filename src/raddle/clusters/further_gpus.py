"""Declares presets of further GPUs that people have, from their makers' data sheets.

As in catalogue.py, peaks are dense: where a data sheet states them with sparsity, half of it is written
here. Nothing of these devices was measured: the efficiencies are the assumed ones. float64, where a data
sheet says nothing, is 1/64 of float32 (1/32 for Turing).
"""

from __future__ import annotations

from raddle.clusters.devices import Collectives, Group, Library, Link, Network
from raddle.clusters.preset import GB, GBIT, Preset, flops_by_dtype, gpu

# x16 slots, each way, that lead to the processor: a port for each device
_PCIE_3, _PCIE_4, _PCIE_5 = (Link(rate * GB, 10e-6) for rate in (15.75, 31.5, 63))
_NCCL = Collectives(Library.NCCL)

_T4 = Preset(
    name="t4",
    nodes=1,
    per_node=4,
    # T4 data sheet: 8.1 and (tensor cores, float16 alone) 65 TFLOP/s; 16 GB of GDDR6, 300 GB/s.
    device=gpu("t4", flops_by_dtype(0.25, 8.1, 8.1, 65), 16, 300),
    link=_PCIE_3,
    network=Network(50 * GBIT, 30e-6),
    source="T4 data sheet; Amazon EC2 g4dn.12xlarge",
    collectives=_NCCL,
)

_A10G = Preset(
    name="a10g",
    nodes=1,
    per_node=8,
    # A10G data sheet, dense: 35, TF32 35, bfloat16 and float16 70 TFLOP/s; 24 GB of GDDR6, 600 GB/s.
    device=gpu("a10g", flops_by_dtype(35 / 64, 35, 70, 70, tf32=35), 24, 600),
    link=_PCIE_4,
    network=Network(100 * GBIT, 30e-6),
    source="A10G data sheet; Amazon EC2 g5.48xlarge",
    collectives=_NCCL,
)

_L4 = Preset(
    name="l4",
    nodes=1,
    per_node=8,
    # L4 data sheet: 30.3 and, with sparsity, TF32 120, bfloat16 and float16 242 TFLOP/s; 24 GB, 300 GB/s.
    device=gpu("l4", flops_by_dtype(30.3 / 64, 30.3, 121, 121, tf32=60), 24, 300),
    link=_PCIE_4,
    network=Network(100 * GBIT, 30e-6),
    source="L4 data sheet; Google Cloud g2-standard-96",
    collectives=_NCCL,
)

_L40S = Preset(
    name="l40s",
    nodes=1,
    per_node=8,
    # L40S data sheet, dense: 91.6, TF32 183, bfloat16 and float16 362 TFLOP/s; 48 GB of GDDR6, 864 GB/s.
    device=gpu("l40s", flops_by_dtype(91.6 / 64, 91.6, 362, 362, tf32=183), 48, 864),
    link=_PCIE_4,
    network=Network(400 * GBIT, 30e-6),
    source="L40S data sheet; Amazon EC2 g6e.48xlarge",
    collectives=_NCCL,
)

_RTX_3090 = Preset(
    name="rtx3090",
    nodes=1,
    per_node=4,
    # NVIDIA Ampere GA102 white paper, dense, sums in float32: 35.6, TF32 35.6, bfloat16 and float16 71
    # TFLOP/s; 24 GB of GDDR6X, 936 GB/s.
    device=gpu("rtx3090", flops_by_dtype(35.6 / 64, 35.6, 71, 71, tf32=35.6), 24, 936),
    link=_PCIE_4,
    network=Network(10 * GBIT, 30e-6),
    source="NVIDIA Ampere GA102 white paper; four in a workstation without bridges, 10 Gb/s Ethernet",
    collectives=_NCCL,
)

_RTX_4090 = Preset(
    name="rtx4090",
    nodes=1,
    per_node=4,
    # NVIDIA Ada white paper, dense, sums in float32: 82.6, TF32 82.6, bfloat16 and float16 165.2 TFLOP/s;
    # 24 GB of GDDR6X, 1,008 GB/s.
    device=gpu("rtx4090", flops_by_dtype(82.6 / 64, 82.6, 165.2, 165.2, tf32=82.6), 24, 1008),
    link=_PCIE_4,
    network=Network(10 * GBIT, 30e-6),
    source="NVIDIA Ada GPU architecture white paper; four in a workstation, 10 Gb/s Ethernet",
    collectives=_NCCL,
)

_RTX_5090 = Preset(
    name="rtx5090",
    nodes=1,
    per_node=4,
    # NVIDIA RTX Blackwell white paper, dense, sums in float32: 104.8, TF32 104.8, bfloat16 and float16
    # 209.5 TFLOP/s; 32 GB of GDDR7, 1,792 GB/s.
    device=gpu("rtx5090", flops_by_dtype(104.8 / 64, 104.8, 209.5, 209.5, tf32=104.8), 32, 1792),
    link=_PCIE_5,
    network=Network(10 * GBIT, 30e-6),
    source="NVIDIA RTX Blackwell white paper; four in a workstation, 10 Gb/s Ethernet",
    collectives=_NCCL,
)

_A6000 = Preset(
    name="a6000",
    nodes=1,
    per_node=4,
    # RTX A6000 data sheet: 38.7 and, with sparsity, 309.7 TFLOP/s in 16 bits; TF32 is half of the dense
    # 154.8. 48 GB of GDDR6, 768 GB/s.
    device=gpu("a6000", flops_by_dtype(38.7 / 64, 38.7, 154.8, 154.8, tf32=77.4), 48, 768),
    # The same data sheet: NVLink bridges join pairs, 112.5 GB/s, half each way.
    link=Link(31.5 * GB, 10e-6, groups=Group(2, 56.25 * GB, 5e-6)),
    network=Network(10 * GBIT, 30e-6),
    source="RTX A6000 data sheet; four in a workstation with two bridges, 10 Gb/s Ethernet",
    collectives=_NCCL,
)

_V100_PCIE = Preset(
    name="v100-pcie",
    nodes=1,
    per_node=4,
    # V100 data sheet, column PCIe: 7, 14 and (tensor cores, float16 alone) 112 TFLOP/s; 16 GB of HBM2,
    # 900 GB/s.
    device=gpu("v100-pcie", flops_by_dtype(7, 14, 14, 112), 16, 900),
    link=_PCIE_3,
    network=Network(100 * GBIT, 5e-6),
    source="V100 data sheet, PCIe; one 100 Gb/s adapter a node",
    collectives=_NCCL,
)

# NVLink 5 through NVSwitch: 1.8 TB/s, half each way; assumed: data gets the same fraction as of NVLink 4.
_NVLINK_5 = Link(900 * GB, 5e-6, efficiency=0.824)
_NDR = Network(400 * GBIT, 5e-6, per_device=True, efficiency=0.97)  # InfiniBand for each GPU
_NVLS = Collectives(Library.NCCL, nvls=True)

_B200 = Preset(
    name="b200",
    nodes=1,
    per_node=8,
    # HGX B200 data sheet, one of eight GPUs: 37, 75 and, with sparsity, TF32 2,250, bfloat16 and float16
    # 4,500 TFLOP/s; 180 GB of HBM3e, 8 TB/s.
    device=gpu("b200", flops_by_dtype(37, 75, 2250, 2250, tf32=1125), 180, 8000),
    link=_NVLINK_5,
    network=_NDR,
    source="HGX B200 and DGX B200 data sheets",
    collectives=_NVLS,
)

_GB200 = Preset(
    name="gb200",
    nodes=1,
    per_node=72,
    # GB200 NVL72 data sheet, one of 72 GPUs: 40, 80 and, with sparsity, TF32 2,500, bfloat16 and float16
    # 5,000 TFLOP/s; 186 GB of HBM3e, 8 TB/s. A node is a rack: NVLink joins all 72.
    device=gpu("gb200", flops_by_dtype(40, 80, 2500, 2500, tf32=1250), 186, 8000),
    link=_NVLINK_5,
    network=_NDR,
    source="GB200 NVL72 data sheet",
    collectives=_NVLS,
)

_MI300X = Preset(
    name="mi300x",
    nodes=1,
    per_node=8,
    # MI300X data sheet, matrix cores, dense: 163.4 (float64 and float32), TF32 653.7, bfloat16 and float16
    # 1,307.4 TFLOP/s; 192 GB of HBM3, 5.3 TB/s.
    device=gpu("mi300x", flops_by_dtype(163.4, 163.4, 1307.4, 1307.4, tf32=653.7), 192, 5300),
    # MI300X platform data sheet: seven links, one to each other GPU, of 128 GB/s, half each way. A port of
    # seven is what a collective uses; two devices alone have one link.
    link=Link(7 * 64 * GB, 5e-6),
    network=_NDR,
    source="MI300X and MI300X platform data sheets; RCCL counts as NCCL, 400 Gb/s for each GPU",
    collectives=_NCCL,
)
