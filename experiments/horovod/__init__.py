"""Repeats Horovod's experiments, in the lab and simulated: fused ring all-reduce against servers.

Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow" (arXiv 1802.05799),
sections 3, 7 and 8, and the benchmarks of its documentation.
*Fused*: small gradients are all-reduced together, in a bucket.
Differs from the paper: see DIFFERS.
"""

from experiments.experiment import Part
from experiments.horovod import fusion, scaling, servers

TITLE = "Horovod: gradients fused into rings, against servers"
CLAIMS = (
    "Fusing small tensors before they are summed trains networks of many layers up to 65 % faster, over "
    "TCP.",
    "A ring needs no servers, whose number is hard to choose; with servers, about half of 128 GPUs was "
    "lost on Inception V3 and ResNet-101.",
    "Scaling efficiency on 128 Pascal GPUs, 4 a node, 25 Gbit/s: 88 % for Inception V3 and ResNet-101 over "
    "TCP, about 90 % over RDMA, 79 % for VGG-16; on 512: 90, 90 and 68 %.",
)
DIFFERS = (
    "Fusion and servers are measured between hosts of the lab, with a process of one thread each, at "
    "250 Mbit/s to 1 Gbit/s; with more ranks than cores, computing takes longer the more ranks there are. "
    "Networks are narrower than the paper's.",
    "raddle.sync does in PyTorch what Horovod's wrapper did in TensorFlow; all-reduces use gloo, not NCCL. "
    "raddle's buckets are filled in a fixed order, Horovod's in the order in which gradients become ready "
    "on all ranks.",
    "Servers are raddle's, on the workers' hosts; those of TensorFlow 1 are not measured.",
    "Scaling is simulated: P100 by their data sheet, all-reduces by a ring, a tree, or rings inside and "
    "between nodes. What a real cluster loses to stragglers, to loading data and to TensorFlow is not "
    "simulated.",
)
PARTS = (
    Part("fusion", "Fusion on and off", fusion.make),
    Part("servers", "The ring against servers", servers.make),
    Part("scaling", "Scaling to 512 devices", scaling.make),
)
