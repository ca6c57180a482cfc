"""Copies the tables of partitions that the thesis prints: 5.1 to 5.12 and A.1 to A.12, of VGG-16.

The batch is 32.

B. Eserol, "Fast and Efficient Model Parallelism for Deep Convolutional Neural Networks", Bilkent
University, 2019.
The ratios that it prints follow from these figures and are left out; so is its "Avg Comm.", the volume
divided by the number of parts.
A part is what one device gets; PaToH is the hypergraph partitioner that the thesis uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PARTS = (2, 4, 8, 16, 32, 64, 128)  # numbers of parts
DEFAULT = 0.1  # epsilon in Tables 5.9 to 5.12: PaToH's parameter "final imbalance"

# The work of each layer, conv1 to fc3, in the thesis's unit (a "weight" of the hypergraph, not the layer's
# parameters). The thesis does not print it. From this reconstruction, which is not unique, its Tables 5.1
# and 5.5 follow within 1 %.
RECONSTRUCTED = (
    629, 6624, 2677, 6371, 2359, 4097, 4353, 2165, 5229, 4478, 1246, 1095, 988, 546, 84, 60,
)  # fmt: skip


class PrintedRow(NamedTuple):
    """A partition in a printed table.

    Work is in the thesis's unit. Volumes are in 2^20 elements, of a forward (printed as MB).
    """

    most: float  # work of the largest part
    least: float  # work of the smallest part
    average: float  # work
    volume: float  # sent by all layers, summed over the parts
    heaviest: float  # of the layer that sends most, summed over the parts

    @property
    def imbalance(self) -> float:
        """Work of the largest part divided by the average."""
        return self.most / self.average


class PrintedTable(NamedTuple):
    """The partitions of one method, by number of parts."""

    name: str  # as the thesis calls the method
    method: str  # raddle's name
    tables: str  # numbers of the thesis's tables
    rows: Mapping[int, PrintedRow]  # by number of parts


class BoundedTable(NamedTuple):
    """A table of the appendix: PaToH's partitions under another bound of imbalance.

    epsilon: the largest part may have (1 + epsilon) times the average work.
    """

    epsilon: float
    tables: str
    rows: Mapping[int, PrintedRow]


LAYERWISE = PrintedTable("layer-wise", "layerwise", "5.1, 5.2", {
    2: PrintedRow(22757, 20244, 21500, 24.5, 24.5),
    4: PrintedRow(12827, 8497, 10750, 85.7, 49.0),
    8: PrintedRow(7253, 2677, 5375, 131.6, 49.0),
    16: PrintedRow(6624, 60, 2687, 273.5, 98.0),
})  # fmt: skip

HORIZONTAL = PrintedTable("filter-wise, horizontal", "filter-horizontal", "5.3, 5.4", {
    2: PrintedRow(21500, 21500, 21500, 484, 98),
    4: PrintedRow(10750, 10750, 10750, 1144, 294),
    8: PrintedRow(5375, 5375, 5375, 2307, 686),
    16: PrintedRow(2687, 2687, 2687, 4556, 1470),
    32: PrintedRow(1343, 1343, 1343, 9016, 3038),
    64: PrintedRow(671, 671, 671, 17916, 6174),
    128: PrintedRow(335, 335, 335, 35707, 12446),
})  # fmt: skip

INCREMENTAL = PrintedTable("filter-wise, incremental", "filter-incremental", "5.5, 5.6", {
    2: PrintedRow(21524, 21495, 21510, 42, 24.5),
    4: PrintedRow(10767, 10732, 10755, 117, 49.0),
    8: PrintedRow(5419, 5289, 5377, 372, 98.0),
    16: PrintedRow(2720, 2535, 2688, 667, 196.0),
    32: PrintedRow(1362, 1161, 1344, 1294, 490.0),
    64: PrintedRow(919, 144, 682, 2212, 882.0),
    128: PrintedRow(715, 144, 352, 4091, 1568.0),
})  # fmt: skip

CHANNELS = PrintedTable("channel-wise, incremental", "channel-incremental", "5.7, 5.8", {
    2: PrintedRow(21507, 21231, 21369, 42, 24.5),
    4: PrintedRow(10753, 10477, 10684, 118, 49.0),
    8: PrintedRow(5378, 5099, 5342, 373, 98.0),
    16: PrintedRow(2689, 2410, 2671, 663, 196.0),
    32: PrintedRow(1345, 1061, 1335, 1275, 490.0),
    64: PrintedRow(915, 144, 667, 2371, 980.0),
    128: PrintedRow(576, 144, 336, 4471, 1960.0),
})  # fmt: skip

COARSE = PrintedTable("coarse-grain", "coarse", "5.9, 5.10", {
    2: PrintedRow(21825, 21195, 21510, 27, 24.5),
    4: PrintedRow(11123, 10189, 10755, 61, 24.5),
    8: PrintedRow(5740, 5012, 5377, 298, 98.0),
    16: PrintedRow(3177, 2544, 2688, 661, 196.0),
    32: PrintedRow(1691, 1242, 1344, 1300, 490.0),
    64: PrintedRow(951, 620, 672, 2388, 980.0),
    128: PrintedRow(623, 144, 336, 4604, 1960.0),
})  # fmt: skip

FINE = PrintedTable("fine-grain", "fine", "5.11, 5.12", {
    2: PrintedRow(21761, 20978, 21369, 27.5, 24.5),
    4: PrintedRow(11262, 10165, 10684, 56.3, 24.5),
    8: PrintedRow(5516, 5171, 5342, 307.3, 98.0),
    16: PrintedRow(2807, 2563, 2671, 549.2, 196.0),
    32: PrintedRow(1552, 1105, 1335, 916.8, 197.5),
    64: PrintedRow(690, 624, 667, 1340.1, 275.6),
    128: PrintedRow(546, 144, 333, 1964.0, 444.0),
})  # fmt: skip

ALL = (LAYERWISE, HORIZONTAL, INCREMENTAL, CHANNELS, COARSE, FINE)

COARSE_BOUNDED = (
    BoundedTable(0.03, "A.1, A.7", {
        2: PrintedRow(21825, 21195, 21510, 27.5, 24.5),
        4: PrintedRow(11123, 10576, 10755, 63.4, 24.5),
        8: PrintedRow(5844, 5237, 5377, 303.1, 98.0),
        16: PrintedRow(3177, 2587, 2688, 659.5, 196.0),
        32: PrintedRow(1659, 1242, 1344, 1302.1, 490.0),
        64: PrintedRow(939, 621, 672, 2477.8, 1078.0),
        128: PrintedRow(584, 78, 336, 4634.2, 1960.0),
    }),
    BoundedTable(0.15, "A.2, A.8", {
        2: PrintedRow(21825, 21195, 21510, 27.5, 24.5),
        4: PrintedRow(11280, 9914, 10755, 59.8, 24.5),
        8: PrintedRow(5654, 4844, 5377, 293.1, 98.0),
        16: PrintedRow(3177, 2403, 2688, 655.7, 196.0),
        32: PrintedRow(1714, 1252, 1344, 1288.9, 490.0),
        64: PrintedRow(960, 612, 672, 2430.8, 980.0),
        128: PrintedRow(599, 144, 336, 4582.7, 1960.0),
    }),
    BoundedTable(0.2, "A.3, A.9", {
        2: PrintedRow(21825, 21195, 21510, 27.5, 24.5),
        4: PrintedRow(11545, 9649, 10755, 58.4, 24.5),
        8: PrintedRow(5818, 4807, 5377, 282.4, 98.0),
        16: PrintedRow(2951, 2328, 2688, 629.9, 196.0),
        32: PrintedRow(1643, 1234, 1344, 1284.0, 392.0),
        64: PrintedRow(995, 606, 672, 2479.5, 980.0),
        128: PrintedRow(606, 144, 336, 4510.6, 1960.0),
    }),
)  # fmt: skip

FINE_BOUNDED = (
    BoundedTable(0.03, "A.4, A.10", {
        2: PrintedRow(22004, 20734, 21369, 26.6, 12.2),
        4: PrintedRow(11004, 10386, 10684, 61.2, 24.5),
        8: PrintedRow(5449, 5236, 5342, 288.9, 98.0),
        16: PrintedRow(2709, 2619, 2671, 540.0, 196.0),
        32: PrintedRow(1817, 851, 1335, 812.9, 196.0),
        64: PrintedRow(690, 638, 667, 1344.0, 298.5),
        128: PrintedRow(546, 144, 333, 2114.1, 457.8),
    }),
    BoundedTable(0.15, "A.5, A.11", {
        2: PrintedRow(23107, 19631, 21369, 15.3, 12.2),
        4: PrintedRow(11665, 10097, 10684, 61.0, 24.5),
        8: PrintedRow(5793, 4880, 5342, 260.0, 98.0),
        16: PrintedRow(2787, 2526, 2671, 426.2, 196.0),
        32: PrintedRow(1409, 1267, 1335, 891.2, 196.0),
        64: PrintedRow(700, 598, 667, 1382.8, 290.9),
        128: PrintedRow(546, 144, 333, 1971.1, 418.0),
    }),
    BoundedTable(0.2, "A.6, A.12", {
        2: PrintedRow(22708, 20031, 21369, 24.5, 24.5),
        4: PrintedRow(11012, 10353, 10684, 72.8, 24.5),
        8: PrintedRow(5604, 5104, 5342, 303.2, 98.0),
        16: PrintedRow(2802, 2573, 2671, 532.6, 196.0),
        32: PrintedRow(1463, 1061, 1335, 851.4, 196.0),
        64: PrintedRow(711, 595, 667, 1410.2, 272.5),
        128: PrintedRow(546, 144, 333, 2123.8, 526.7),
    }),
)  # fmt: skip
