"""Repeats the thesis's Tables A.1 to A.12: coarse and fine partitions under several bounds of imbalance.

The bounds are 1.03, 1.15 and 1.2; that of the thesis's Tables 5.9 to 5.12 is 1.1.
The thesis is that of B. Eserol (docs/papers.md), and this file belongs to `raddle reproduce thesis`.

*Coarse*: whole filters are distributed over parts; *fine*: input channels of filters. *Imbalance* is the
work of the largest part divided by the average; epsilon is its bound minus 1. `theirs` is a printed row,
`ours` raddle's partition (by a Partitioner, which has the hypergraph of one network). `counts` are numbers
of parts, `budget` the seconds that a partition may take. The heaviest layer is the one that sends most.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.experiment import RunOptions
from experiments.thesis.partitions import MI, allowed_epsilon, heaviest_volume
from experiments.thesis.printed import COARSE_BOUNDED, FINE_BOUNDED, BoundedTable
from raddle.api.partitioning import Partitioner, PartitionRequest
from raddle.api.results import Cell, Column, Table

# Column: name, source of its numbers ("counted": from a plan alone), digits after the point
COLUMNS = (
    Column("tables"), Column("epsilon", digits=2), Column("N"),
    Column("largest/average", "printed", 2), Column("largest/average", "counted", 2),
    Column("volume", "printed", 1), Column("volume", "counted", 1),
    Column("at least", "counted", 1),
    Column("heaviest layer", "printed", 1), Column("heaviest layer", "counted", 1),
)  # fmt: skip
NOTE = (
    "Volumes of a forward in Mi elements. Epsilon: the bound of largest/average in the thesis, minus 1. "
    "Ours may be as uneven as the printed partition is. At least: no partition of whole filters that is as "
    "even sends less."
)


def tables(
    partitioner: Partitioner, counts: Sequence[int], budget: float, options: RunOptions
) -> list[Table]:
    """Returns two tables, coarse and fine, with a row for each bound of imbalance and number of parts."""
    result = []
    for method, bounded in (("coarse", COARSE_BOUNDED), ("fine", FINE_BOUNDED)):
        rows = []
        for bounded_table in bounded:
            for parts in counts:
                # 0.7: the fraction of the experiment's part `tables` that is finished before (tables.py)
                options.report(f"{method}, epsilon {bounded_table.epsilon:g}, {parts} parts", 0.7)
                rows.append(row(partitioner, method, bounded_table, parts, budget))
        numbers = "A.1 to A.3, A.7 to A.9" if method == "coarse" else "A.4 to A.6, A.10 to A.12"
        result.append(Table(f"Tables {numbers}: {method}-grain", COLUMNS, rows, NOTE))
    return result


def row(
    partitioner: Partitioner, method: str, bounded_table: BoundedTable, parts: int, budget: float
) -> list[Cell]:
    """Returns one row, in the order of COLUMNS."""
    theirs = bounded_table.rows[parts]
    ours = partitioner.partition(
        method, PartitionRequest(parts, epsilon=allowed_epsilon(theirs), budget=budget)
    )
    # No partition of whole filters that is as even sends less than the lower bound.
    least = None if ours.lower_bound is None else ours.lower_bound / MI
    return [
        bounded_table.tables, bounded_table.epsilon, parts, theirs.imbalance, ours.imbalance,
        theirs.volume, ours.volume / MI, least, theirs.heaviest, heaviest_volume(ours),
    ]  # fmt: skip
