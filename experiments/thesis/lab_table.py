"""Copies the thesis's Table 5.15: seconds for 10 epochs of 10,240 images, VGG-16 at 224² on Skylake nodes.

The thesis is that of B. Eserol (docs/papers.md), and this file belongs to `raddle reproduce thesis`.

The caption of the table says that the seconds are per epoch; the text before it says of ten epochs, which
is assumed here. There is one server, or there are servers on all nodes, to which parameters are assigned
greedily (distributed). A row is a kind of parallelism, N the number of nodes.

Model parallel rows: layer-wise gives whole layers to a node; filter-wise fills one node after the other
with filters, layer by layer; coarse hypergraph partitions the filters as a hypergraph. The other rows are
data parallel, except `single`, which is one node.
"""

from __future__ import annotations

BATCHES = (16, 32, 64, 128, 256, 512)
IMAGES_OF_TEN_EPOCHS = 10 * 10_240  # how many images ten epochs train on
SINGLE = "single"
LAYERS, FILTERS, COARSE = "layer-wise", "filter-wise", "coarse hypergraph"
ASYNC_ONE, SYNC_ONE = "servers: one, asynchronous", "servers: one, synchronous"
ASYNC_ALL, SYNC_ALL = "servers: distributed, asynchronous", "servers: distributed, synchronous"

# By N and row, seconds at each of BATCHES.
SECONDS: dict[int, dict[str, tuple[int, ...]]] = {
    1: {SINGLE: (9405, 9536, 6265, 5420, 5150, 4842)},
    2: {
        LAYERS: (5431, 4718, 3831, 3560, 3293, 3079),
        FILTERS: (5506, 5002, 4392, 3557, 3503, 3301),
        COARSE: (5630, 4754, 4012, 3527, 3276, 2862),
        ASYNC_ONE: (10256, 6736, 4758, 3700, 3106, 2705),
        SYNC_ONE: (10731, 7231, 5068, 3938, 3244, 2790),
        ASYNC_ALL: (9757, 6704, 4833, 3797, 3214, 2737),
        SYNC_ALL: (10140, 6906, 4979, 3875, 3176, 2934),
    },
    4: {
        LAYERS: (3263, 2801, 2478, 2209, 2100, 1949),
        FILTERS: (3856, 3407, 2915, 2672, 2529, 2313),
        COARSE: (3306, 2662, 2050, 1971, 1814, 1682),
        ASYNC_ONE: (5361, 3411, 2366, 1868, 1569, 1351),
        SYNC_ONE: (6657, 4181, 2796, 2120, 1679, 1510),
        ASYNC_ALL: (5007, 3371, 2421, 1864, 1567, 1367),
        SYNC_ALL: (5898, 3855, 2628, 2040, 1684, 1431),
    },
}


def images_per_second(ranks: int, row: str, batch: int) -> float | None:
    """Returns the throughput from the printed seconds; None where the table has no such row or batch."""
    seconds = SECONDS.get(ranks, {}).get(row)
    if seconds is None or batch not in BATCHES:
        return None
    return IMAGES_OF_TEN_EPOCHS / seconds[BATCHES.index(batch)]
