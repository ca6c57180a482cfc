"""Measures Table 5.15 with a small VGG-16 on hosts of the lab, next to the simulated images per second.

This is the part `lab` of `raddle reproduce thesis`. The thesis is that of B. Eserol (docs/papers.md).

Differs from the thesis: images of 32² and an eighth of the filters; a host is a process with one thread,
and hosts may share cores; even with asynchronous servers, ranks wait in every step for each other, because
the losses of all ranks are added up. A *row* (or kind) is one of Table 5.15: a kind of parallelism. A grid
(lab_grid.py) has all rows for N ranks; its cells, by label of a row and batch, have measured and simulated
images/s.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from experiments.experiment import Part, RunOptions
from experiments.rank_correlation import spearman
from experiments.thesis.lab_grid import Grid, GridSize, run_grid
from experiments.thesis.lab_model import SIDE
from experiments.thesis.lab_table import BATCHES, COARSE, SINGLE, SYNC_ALL, images_per_second
from raddle.api.clusters import cores
from raddle.api.lab import check_system
from raddle.api.results import Cell, Chart, Column, Line, Section, Table
from raddle.errors import InputError

TITLE = "Every kind of parallelism in the lab (Table 5.15)"
RANKS = (1, 2, 4)
# The rate of each host's link. In the thesis, to send VGG-16's parameters at 10 Gbit/s takes as long as to
# compute 5 to 9 images on one node; here, to send the small network's at this rate takes as long as to
# compute 11 to 15 images on a core with 60 GFLOP/s.
RATE = "2gbit"
QUICK_BATCHES = (16, 128)
QUICK, FULL = GridSize(images=128, rounds=2, budget=2.0), GridSize(images=256, rounds=3, budget=5.0)


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    batches = QUICK_BATCHES if options.quick else BATCHES
    size = QUICK if options.quick else FULL
    grids = []
    try:
        check_system()
        for done, ranks in enumerate(RANKS):

            def report_step(step: str, done: int = done) -> None:
                """Reports what is done now, with the fraction of grids that are finished."""
                options.report(step, done / len(RANKS))

            grids.append(run_grid(ranks, batches, RATE, size, report_step))
    except InputError as error:
        return Section(TITLE, skipped=str(error))
    return section(grids, batches)


def section(grids: Sequence[Grid], batches: Sequence[int]) -> Section:
    """Returns the section with sentences, tables and a chart; the first grid is that of a single rank."""
    text = "\n\n".join([_setting(grids), _accuracy(grids), _crossover(grids, batches)])
    tables = [_rates(grid, batches) for grid in grids]
    return Section(TITLE, text, [*tables, _speedups(grids, batches), _chart(grids, batches)])


def rows_of(grid: Grid) -> list[str]:
    """Returns the labels of the grid's rows."""
    return list(dict.fromkeys(label for label, _ in grid.cells))


def _rates(grid: Grid, batches: Sequence[int]) -> Table:
    """Returns a table of the images per second of each row, measured and simulated, by batch."""
    # Column: name, source of its numbers, digits after the point
    columns = [Column("kind")]
    for batch in batches:
        columns += [Column(f"{batch}", "measured", 0), Column(f"{batch}", "simulated", 0)]
    rows: list[list[Cell]] = []
    for label in rows_of(grid):
        row: list[Cell] = [label]
        for batch in batches:
            row += grid.cells[label, batch]
        rows.append(row)
    note = (
        "By global batch. Model parallel rows have four batches in flight (threaded:4:greedy), as the "
        "thesis has it, unless they say step by step; gradients are computed where their parameters are. "
        "In the run each device decides what it does next; the simulation has an order that is fixed."
    )
    if grid.ranks > cores():
        note += (
            f" {grid.ranks} ranks share {cores()} cores: the simulation multiplies the time of an operator "
            f"by the number of ranks that compute at the same time, divided by {cores()}."
        )
    return Table(f"Images a second, N = {grid.ranks}", columns, rows, note)


def speedup(grids: Sequence[Grid], ranks: int, label: str, batch: int) -> float | None:
    """Returns the measured images/s divided by those of a single rank at the same batch."""
    by_ranks = {grid.ranks: grid.cells for grid in grids}
    cell, single = by_ranks[ranks].get((label, batch)), by_ranks[1].get((SINGLE, batch))
    return cell.measured / single.measured if cell and single else None


def printed_speedup(ranks: int, label: str, batch: int) -> float | None:
    """Returns the same speedup from the thesis's table; None if it has no such row or batch."""
    rate, single = images_per_second(ranks, label, batch), images_per_second(1, SINGLE, batch)
    return rate / single if rate and single else None


def _speedups(grids: Sequence[Grid], batches: Sequence[int]) -> Table:
    """Returns a table of speedups over a single rank, measured and printed."""
    columns = [Column("N"), Column("kind")]
    for batch in batches:
        columns += [Column(f"{batch}", "measured", 2), Column(f"{batch}", "printed", 2)]
    rows: list[list[Cell]] = []
    for grid in grids[1:]:
        for label in rows_of(grid):
            row: list[Cell] = [grid.ranks, label]
            for batch in batches:
                row += [speedup(grids, grid.ranks, label, batch)]
                row += [printed_speedup(grid.ranks, label, batch)]
            rows.append(row)
    note = (
        f"Times a single rank, by global batch. All ranks here have {cores()} cores between "
        "them; a node of the thesis has 56. The thesis prints the seconds of ten epochs of 10,240 images."
    )
    return Table("Faster than a single rank", columns, rows, note)


def _chart(grids: Sequence[Grid], batches: Sequence[int]) -> Chart:
    """Returns a chart of the throughput of model parallelism divided by that of data parallelism."""
    lines = []
    for grid in grids[1:]:
        model, data = (
            [grid.cells[label, batch] for batch in batches] for label in (COARSE, SYNC_ALL)
        )
        pairs = list(zip(batches, model, data, strict=True))
        printed = [(batch, printed_ratio(grid.ranks, batch)) for batch in batches]
        name = f"N = {grid.ranks}"
        lines += [
            Line(f"{name}, here", [(b, m.measured / d.measured) for b, m, d in pairs], "measured"),
            Line(
                f"{name}, simulated",
                [(b, m.simulated / d.simulated) for b, m, d in pairs],
                "simulated",
            ),
            Line(f"{name}, thesis", [(b, r) for b, r in printed if r], "printed"),
        ]
    return Chart(
        "Model parallel divided by data parallel", "global batch", f"{COARSE} / {SYNC_ALL}", lines,
        log_x=True,
        note="Images a second divided by images a second: below 1, data parallelism is faster.",
    )  # fmt: skip


def printed_ratio(ranks: int, batch: int) -> float | None:
    """Returns the thesis's throughput of the coarse partition divided by that of SYNC_ALL."""
    model, data = (images_per_second(ranks, label, batch) for label in (COARSE, SYNC_ALL))
    return model / data if model and data else None


# -- sentences -------------------------------------------------------------------------------------


def _setting(grids: Sequence[Grid]) -> str:
    """Returns sentences that describe the network, the hosts and their measured links."""
    links = [
        f"{1e-6 * grid.link['bandwidth']:.0f} MB/s and {1e3 * grid.link['latency']:.2f} ms "
        f"at N = {grid.ranks}"
        for grid in grids
        if grid.link
    ]
    return (
        f"VGG-16 with an eighth of the filters on images of {SIDE}², float32, SGD with momentum; hosts "
        f"of the lab behind links of {RATE}, with one thread each. Measured there: {', '.join(links)}. "
        "The simulation uses that link and operators as they were measured; no number is fitted to the "
        "rows."
    )


def _accuracy(grids: Sequence[Grid]) -> str:
    """Returns sentences about the errors of the simulation, for each number of ranks."""
    sentences = []
    for grid in grids:
        cells = list(grid.cells.values())
        errors = [abs(cell.simulated / cell.measured - 1) for cell in cells]
        sentence = (
            f"N = {grid.ranks}: the simulation is off by {statistics.median(errors):.0%} (median of "
            f"{len(cells)}), at most {max(errors):.0%}"
        )
        if len(cells) > len({batch for _, batch in grid.cells}):
            rank = spearman([c.measured for c in cells], [c.simulated for c in cells])
            sentence += f", and ranks them with a correlation of {rank:.2f}"
        sentences.append(sentence + ".")
    return " ".join(sentences)


def _crossover(grids: Sequence[Grid], batches: Sequence[int]) -> str:
    """Returns sentences: at which batches COARSE is faster than SYNC_ALL, and which row is the fastest."""
    sentences = []
    for grid in grids[1:]:
        measured_ratios = {
            b: grid.cells[COARSE, b].measured / grid.cells[SYNC_ALL, b].measured for b in batches
        }
        printed_ratios = {b: ratio for b in batches if (ratio := printed_ratio(grid.ranks, b))}
        best = max(grid.cells, key=lambda cell: grid.cells[cell].measured)
        best_label, best_batch = best
        sentences.append(
            f"N = {grid.ranks}: the coarse hypergraph is faster than distributed synchronous servers "
            f"{batches_won(measured_ratios)} "
            f"(thesis: {batches_won(printed_ratios)}); the fastest of all is {best_label} "
            f"at batch {best_batch}, "
            f"{grid.cells[best].measured:.0f} images/s."
        )
    return " ".join(sentences)


def batches_won(ratios: dict[int, float]) -> str:
    """Returns the batches whose ratio is above 1, in words."""
    won = [str(batch) for batch, ratio in ratios.items() if ratio > 1]
    if not won:
        return "at no batch"
    return "at every batch" if len(won) == len(ratios) else f"at batch {', '.join(won)}"


PART = Part("lab", TITLE, make)
