"""Recomputes Table 5.14 of the thesis on hypergraph partitions: bytes sent in an epoch of 64,000 images.

The thesis is that of B. Eserol (docs/papers.md), and this file belongs to `raddle reproduce thesis`.

Differs from the thesis: its hypergraph column is in elements; here it is multiplied by 4 (float32).
The partition is *coarse*: each filter is in one part, and a part is what one device gets.
`further` are methods that the thesis does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import NamedTuple

from experiments.thesis.partitions import data_bytes
from experiments.thesis.printed_epoch import (
    EPOCH_BATCHES,
    EPOCH_DATA,
    EPOCH_HYPERGRAPH,
    EPOCH_IMAGES,
    EPOCH_SAVED,
)
from raddle.api.results import Cell, Column, Table

GI = 2**30
ELEMENT = 4  # bytes


class EpochBytes(NamedTuple):
    """The table of an epoch, and the average shares of bytes that partitions save."""

    table: Table
    saved_printed: float  # average share that the thesis's partitions save, all counted in bytes
    # method of ours -> average share that it saves, in words, such as "93% over 9 rows"
    saved: Mapping[str, str]


def count_epoch(
    parameters: int, coarse: Mapping[int, int], further: Mapping[str, Mapping[tuple[int, int], int]]
) -> EpochBytes:
    """Returns the table of an epoch, from bytes per step.

    parameters: how many the network has; coarse: parts -> bytes of a step of the coarse partition at batch
    32; further: method -> (parts, batch) -> bytes of a step.
    """
    rows: list[list[Cell]] = []
    saved: dict[str, list[float]] = {"printed": [], "coarse": [], **{name: [] for name in further}}
    for parts in EPOCH_HYPERGRAPH:
        for batch in EPOCH_BATCHES:
            steps = EPOCH_IMAGES // batch
            data = data_bytes(parameters, parts) * steps / GI
            printed = float(EPOCH_HYPERGRAPH[parts] * ELEMENT)
            ours = coarse[parts] * (EPOCH_IMAGES // 32) / GI  # proportional to images
            row: list[Cell] = [parts, batch, EPOCH_DATA[parts, batch], data]
            row += [
                EPOCH_HYPERGRAPH[parts],
                printed,
                _share(printed, data),
                ours,
                _share(ours, data),
            ]
            saved["printed"].append(1 - printed / data)
            saved["coarse"].append(1 - ours / data)
            for name, nbytes in further.items():
                step_bytes = nbytes.get((parts, batch))
                row.append(None if step_bytes is None else step_bytes * steps / GI)
                if step_bytes is not None:
                    saved[name].append(1 - step_bytes * steps / GI / data)
            rows.append(row)
    saved_printed = mean(saved.pop("printed"))
    averages = {
        name: f"{mean(shares):.0%} over {len(shares)} rows"
        for name, shares in saved.items()
        if shares
    }
    return EpochBytes(_table(rows, list(further)), saved_printed, averages)


def _share(nbytes: float, data: float) -> float:
    """Returns how many percent of data parallelism's bytes are saved."""
    return 100 * (1 - nbytes / data)


def _table(rows: list[list[Cell]], further: list[str]) -> Table:
    """Returns the table with its columns; further: names of the methods in the last columns."""
    # Column: name, source of its numbers ("counted": from a plan alone), digits after the point
    columns = [
        Column("N"), Column("batch"),
        Column("data parallelism", "printed", 0), Column("data parallelism", "counted", 0),
        Column("hypergraph, Gi elements", "printed", 0), Column("the same in GiB", "counted", 0),
        Column("saves, %", "counted", 0), Column("coarse", "counted", 0),
        Column("saves, %", "counted", 0), *(Column(name, "counted", 0) for name in further),
    ]  # fmt: skip
    note = (
        "GiB of an epoch, forward and backward, float32. In its hypergraph column the thesis counts "
        f"elements as if they were bytes, and so prints that {EPOCH_SAVED:.1%} are saved on average."
    )
    return Table("Table 5.14: an epoch of 64,000 images", columns, rows, note)
