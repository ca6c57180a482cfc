"""Repeats FlexFlow (Jia et al., arXiv 1807.05358): plans found by simulation and random moves.

Differs from the paper: steps are simulated on its cluster, not measured.
"""

from __future__ import annotations

from experiments.experiment import Part
from experiments.flexflow.no_overlap import no_overlap
from experiments.flexflow.plans import plans
from experiments.flexflow.ranking import ranking
from experiments.flexflow.search import search
from experiments.flexflow.throughput import throughput

TITLE = "FlexFlow: plans found by simulation and random moves"
CLAIMS = (
    "Up to 3.3 x the throughput of data parallelism and of experts' plans, over six networks (AlexNet, "
    "Inception-v3, ResNet-101, RNNTC, RNNLM, NMT) on up to 64 K80; the abstract has up to 3.8 x.",
    "The search with delta simulation takes 0.04 s (AlexNet) to 16 s (NMT) on 4 GPUs, 0.5 to 328 s on 16, "
    "6 to 2190 s on 64.",
    "Delta simulation is 2.2 to 6.9 x faster than simulating every proposal in full.",
    "The simulator is less than 30 % off, and always ranks plans by step time as measurements do.",
)
DIFFERS = (
    "Throughput is simulated on the paper's cluster, from data sheets and assumed efficiencies; the paper "
    "measured it.",
    "64 samples a GPU, 256 for AlexNet: the paper's batch, taken as that of one GPU.",
    "Steps are simulated with servers, which is how the paper counts synchronisation, and also with "
    "all-reduce; each of the two overlaps with the backward, but in the part `no-overlap`.",
    "Besides uniformly random moves the search has guided ones (such as taking a neighbour's split); it "
    "also starts from OptCNN's optima, splits the operators of a group alike, and has a budget of "
    "seconds. There is no delta simulation (bench/search says why).",
    "The order of plans is measured on CPU ranks with a small network, not on GPUs.",
)
PARTS = (
    Part("throughput", "Throughput on 4 to 64 K80", throughput),
    Part("no-overlap", "Throughput if synchronisation follows the backward", no_overlap),
    Part("search", "Seconds of the search, delta and full simulation", search),
    Part("plans", "NMT on 4 GPUs: which layers are where", plans),
    Part("ranking", "Ten plans, simulated and measured", ranking),
)
