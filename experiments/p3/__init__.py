"""Repeats P3's experiments in the lab: parameter slices are sent by priority.

Jayarajan et al., "Priority-based Parameter Propagation for Distributed DNN Training" (arXiv 1905.03960),
its evaluation: throughput against bandwidth, and network utilisation. The sync kind `ps` is
parameter servers that hold whole parameters.
Differs from the paper: see DIFFERS.
"""

from experiments.experiment import Part
from experiments.p3 import bandwidth, utilisation

TITLE = "P3: slices of parameters, the most urgent first"
CLAIMS = (
    "Against servers of whole parameters, slices with priority train up to 25 % faster on ResNet-50 "
    "(26 % at 4 Gbit/s), 38 % on Sockeye and 66 % on VGG-19 (at 15 Gbit/s).",
    "Slices alone gain where one tensor has most of the parameters: 49 % on VGG-19 at 30 Gbit/s.",
    "There is no gain where the network is fast, nor where it is so slow that no computing is left to hide "
    "communication behind.",
    "Servers of whole parameters use a link in bursts and one direction at a time; P3 keeps both busy.",
)
DIFFERS = (
    "Two hosts of the lab, a process and a core each, at 100 Mbit/s to 4 Gbit/s; the paper has four "
    "machines with a P4000 each, at up to 30 Gbit/s. Networks are as deep as the paper's and narrower, so "
    "that communication takes about as long as computing near 1 Gbit/s.",
    "The LSTM-like network is a language model of two layers; Sockeye is an encoder and a decoder with "
    "attention.",
    "The paper's baseline is MXNet's KVStore: `ps` here, servers of whole parameters on all hosts. DDP and "
    "all-reduce, which the paper does not have, hide more of their communication than this baseline.",
    "Slices have 250,000 parameters, the paper's 50,000: a message costs these cores 0.4 ms at each end.",
    "Servers share the cores on which the workers compute; in the paper, workers compute on GPUs.",
)
PARTS = (
    Part("bandwidth", "Throughput against bandwidth", bandwidth.make),
    Part("utilisation", "The link over time", utilisation.make),
)
