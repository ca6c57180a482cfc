"""Repeats OptCNN (Jia et al., arXiv 1802.04924): every layer of a CNN has its own split.

Differs from the paper: steps are simulated on its cluster, not measured.
"""

from __future__ import annotations

from experiments.experiment import Part
from experiments.optcnn.calibrated import calibrated
from experiments.optcnn.plans import plans
from experiments.optcnn.ranking import ranking
from experiments.optcnn.search import search
from experiments.optcnn.throughput import throughput

TITLE = "OptCNN: a split of its own for every layer"
CLAIMS = (
    "On 16 P100 (4 nodes of 4, 32 images a GPU) up to 2.2, 1.5 and 1.4 x the throughput of the best of "
    "data, model and 'one weird trick' parallelism for AlexNet, VGG-16 and Inception-v3.",
    "From 1 to 16 GPUs throughput grows 12.2, 14.8 and 15.5 x; 1.3 to 23 x less is communicated.",
    "The plan is found in 0.01, 0.02, 0.1 and 0.4 s for LeNet-5, AlexNet, VGG-16 and Inception-v3 on 4 "
    "GPUs, where trying all plans takes hours to more than a day.",
    "VGG-16 on 4 GPUs: samples for the first four groups of convolutions, height and width for the last, "
    "channels for the fully connected layers, the last of them on two GPUs.",
    "The cost model is within -5 to +9 % of what was measured.",
)
DIFFERS = (
    "Throughput is simulated on the paper's cluster, from data sheets and assumed efficiencies; the paper "
    "measured it. Links have their nominal rates; in the part `calibrated` those of a fit, and the peak is "
    "fitted to one GPU.",
    "The paper synchronises through a server for each layer. Both that and all-reduce are simulated, and "
    "in both synchronisation overlaps with the backward.",
    "A node of the search is a group of operators that are split alike; parts are powers of two.",
    "The order of plans is measured on CPU ranks with a small network, not on GPUs.",
)
PARTS = (
    Part("throughput", "Throughput and communication on 1 to 16 P100", throughput),
    Part("calibrated", "Throughput with a peak fitted to one GPU", calibrated),
    Part("search", "Seconds of the search", search),
    Part("plans", "VGG-16 on 4 GPUs, layer by layer", plans),
    Part("ranking", "Ten plans, simulated and measured", ranking),
)
