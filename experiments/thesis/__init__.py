"""Repeats a thesis that partitions the filters of CNNs as a hypergraph and trains asynchronously.

B. Eserol, "Fast and Efficient Model Parallelism for Deep Convolutional Neural Networks", Bilkent
University, 2019, chapters 3 to 6.

A *coarse* partition gives each filter to a part, a *fine* one each input channel of a filter; a part is
what one of N devices gets. `hypergraph-mixed` splits each layer along an axis of its own.
Differs from the thesis: see DIFFERS.
"""

from experiments.thesis.gpus import PART as GPUS
from experiments.thesis.grid import PART as GRID
from experiments.thesis.lab import PART as LAB
from experiments.thesis.tables import PART as TABLES
from experiments.thesis.training import PART as ACCURACY

TITLE = (
    "Hypergraph partitions of filters, servers, and asynchronous training (a thesis, 5.1 to 5.3)"
)
CLAIMS = (
    "Coarse and fine partitions of VGG-16 are balanced within 2 % at N = 2 and 18 and 5 % at N = 16, and "
    "send 27 and 27.5 MB of a forward at N = 2, 661 and 549 at N = 16 (Tables 5.9 to 5.12).",
    "They send 93 % less than data parallelism in an epoch of 64,000 images (Table 5.14).",
    "With several batches in flight, model parallelism is faster than data parallelism with servers up to "
    "batch 128 on two nodes and 64 on four (Table 5.15).",
    "VGG-16 reaches 90 % training accuracy in 44 hours on four nodes, 122 on one; data parallelism takes "
    "1.5 (asynchronous) and 3.5 (synchronous) times as long (Figure 5.2).",
    "On GPUs the gap to data parallelism would grow (section 6.1).",
)
DIFFERS = (
    "The thesis does not print the work of layers (weights): here it is reconstructed from its Tables 5.1 "
    "and 5.5; FLOPs and a profile of this machine are used too.",
    "The thesis's volumes in MB are Mi elements. Here they have that unit; bytes are given too.",
    "The printed partitions are PaToH's; ours come from raddle's own solvers.",
    "Its run times are of two-socket Xeon nodes; here they are simulated at full size, and measured at "
    "small size in the lab. Efficiency in simulation does not depend on the batch.",
    "hypergraph-mixed and auto, which are not the thesis's, are further rows.",
)
PARTS = (TABLES, GRID, GPUS, LAB, ACCURACY)
