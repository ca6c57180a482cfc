"""Simulates the thesis's Table 5.15 at full size on its nodes, with either network (part `grid`).

This is the part `grid` of `raddle reproduce thesis`. The thesis is that of B. Eserol (docs/papers.md).

A row is a kind of parallelism of Table 5.15; a cell is a row at one batch; N is the number of
nodes. Rows are named in lab_table.py and lab_plans.py; simulated.py puts them into MODEL (model parallel),
SERVERS, DATA (data parallel: SERVERS and all-reduce) and FURTHER (not in the thesis).
Differs from the thesis: see simulated.py; the thesis does not say which network it used. A *network*
connects nodes here (10 Gbit/s Ethernet or Omni-Path); it is not a model.
`hypergraph-mixed` and `auto` are synchronous.
"""

# on: the cluster that plans are made for

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.experiment import Part, RunOptions
from experiments.thesis.lab_plans import DDP
from experiments.thesis.lab_table import BATCHES, COARSE, IMAGES_OF_TEN_EPOCHS, SECONDS, SINGLE
from experiments.thesis.simulated import (
    DATA,
    FURTHER,
    MODEL,
    SERVERS,
    SimulatedRow,
    crossover,
    simulate_row,
)
from raddle.api.results import Cell, Chart, Column, Line, Section, Table

TITLE = "Run times simulated at full size (Table 5.15)"
NETWORKS = ("skylake-10gbe", "skylake-opa")
# Batches. N workers with batch b have N x b images per update. With these, some N x b are batches too, so
# that times at equal images per update can be compared.
QUICK = (16, 64, 128)
QUICK_SEARCHED = (64,)  # batches for which --quick runs the searches
CellsByRow = Mapping[tuple[int, str, int], SimulatedRow]  # by N, row and batch


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    batches = QUICK if options.quick else BATCHES
    searched = QUICK_SEARCHED if options.quick else BATCHES
    cells_by_network: dict[str, CellsByRow] = {}
    for i, network in enumerate(NETWORKS):
        cells_by_network[network] = _cells(network, batches, searched, options, i)
    parts: list[Table | Chart] = []
    for network, cells in cells_by_network.items():
        parts.append(table(network, cells, batches))
        parts += [chart(network, cells, batches, n) for n in (2, 4)]
    texts = [
        _printed_text(),
        *(network_text(name, cells) for name, cells in cells_by_network.items()),
    ]
    return Section(TITLE, "\n\n".join(texts), parts)


def _cells(
    network: str, batches: Sequence[int], searched: Sequence[int], options: RunOptions, done: int
) -> CellsByRow:
    """Simulates all rows. searched: batches for FURTHER; done: how many networks are finished."""
    cells: dict[tuple[int, str, int], SimulatedRow] = {}
    wanted = [(1, SINGLE, batch) for batch in batches]
    for n in (2, 4):
        wanted += [(n, row, batch) for row in (*MODEL, *DATA) for batch in batches]
        wanted += [(n, row, batch) for row in FURTHER for batch in searched]
    for i, (n, row, batch) in enumerate(wanted):
        fraction = (done + i / len(wanted)) / len(NETWORKS)
        options.report(f"{network}, N = {n}, {row}, batch {batch}", fraction)
        # seconds of a search; model parallelism is tried with N x each factor steps in flight
        budget, factors = (0.5, (2,)) if options.quick else (2.0, (1, 2, 4))
        on = f"{network}:{n}x1"
        cells[n, row, batch] = simulate_row(on, row, batch, budget=budget, factors=factors)
    return cells


def table(network: str, cells: CellsByRow, batches: Sequence[int]) -> Table:
    """Returns the table of all rows on one network, printed and simulated."""
    # Column: name, source of its numbers, digits after the point
    columns = [Column("N"), Column("row")]
    for batch in batches:
        columns += [Column(f"{batch}", "printed", 0), Column(f"{batch}", "simulated", 0)]
    columns.append(Column("steps in flight"))
    rows = [_row(cells, n, row, batches) for n, row in dict.fromkeys((n, r) for n, r, _ in cells)]
    note = (
        f"Seconds of {IMAGES_OF_TEN_EPOCHS} images, by batch. For model parallelism this is the batch of a "
        "step, and as many steps run at the same time as the last column says (for the largest batch: the "
        "fastest of N, 2 N and 4 N in the full table). For data parallelism it is the batch of a worker. "
        "hypergraph-mixed and auto: the batch of a step, one step at a time."
    )
    return Table(f"Table 5.15 on {network}", columns, rows, note)


def _row(cells: CellsByRow, n: int, row: str, batches: Sequence[int]) -> list[Cell]:
    """Returns the cells of one row of the table: printed and simulated seconds by batch."""
    values: list[Cell] = [n, row]
    for batch in batches:
        cell = cells.get((n, row, batch))
        values += [printed(n, row).get(batch), None if cell is None else cell.seconds]
    last = cells.get((n, row, batches[-1]))
    return [*values, last.steps_in_flight if last is not None and row in MODEL else None]


def printed(n: int, row: str) -> dict[int, float]:
    """Returns the printed seconds by batch; empty if the thesis has no such row."""
    return dict(zip(BATCHES, map(float, SECONDS[n].get(row, ())), strict=False))


def seconds(cells: CellsByRow, n: int, row: str) -> dict[int, float]:
    """Returns the simulated seconds of a row, by batch; without batches that do not fit the memory."""
    return {
        batch: cell.seconds
        for (count, name, batch), cell in cells.items()
        if (count, name) == (n, row) and cell.seconds is not None
    }


def fastest(rows: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Returns, for each batch, the shortest time of several rows."""
    batches = {batch for row in rows for batch in row}
    return {b: min(row[b] for row in rows if b in row) for b in sorted(batches)}


def as_updates(row: Mapping[int, float], n: int) -> dict[int, float]:
    """Returns the row by images per update, not by batch: each of n workers has a batch of its own."""
    return {n * batch: seconds_of_batch for batch, seconds_of_batch in row.items()}


def chart(network: str, cells: CellsByRow, batches: Sequence[int], n: int) -> Chart:
    """Returns a chart of the seconds of ten epochs over the batch, printed and simulated."""
    model, servers = printed(n, COARSE), fastest([printed(n, row) for row in SERVERS])
    lines = [
        Line("coarse, printed", [(b, model[b]) for b in batches], "printed"),
        Line("fastest servers, printed", [(b, servers[b]) for b in batches], "printed"),
    ]
    ours = {
        "coarse": seconds(cells, n, COARSE),
        "fastest servers": fastest([seconds(cells, n, row) for row in SERVERS]),
        "all-reduce": seconds(cells, n, DDP),
        **{row: seconds(cells, n, row) for row in FURTHER},
    }
    lines += [Line(name, sorted(row.items()), "simulated") for name, row in ours.items() if row]
    return Chart(f"N = {n} on {network}", "batch", "seconds", lines, log_x=True, log_y=True)


def _printed_text() -> str:
    """Returns sentences about the printed table: why its batch is a worker's, and the crossovers."""
    # Seconds of 2 workers divided by those of 4
    ratios = [
        printed(2, name)[batch] / printed(4, name)[batch] for name in SERVERS for batch in BATCHES
    ]
    sentences = [
        crossover_text(n, {name: printed(n, name) for name in (COARSE, *SERVERS)}) for n in (2, 4)
    ]
    return (
        f"Printed: with servers, 2 workers take {min(ratios):.2f} to {max(ratios):.2f} x as long as 4 do, "
        "at the same batch, so the batch is taken to be that of one worker. " + " ".join(sentences)
    )


def network_text(network: str, cells: CellsByRow) -> str:
    """Returns sentences: the crossovers, and the times of the rows FURTHER relative to the table's rows."""
    texts = [f"Simulated on {network}:"]
    for n in (2, 4):
        rows = {name: seconds(cells, n, name) for name in (COARSE, *SERVERS)}
        texts += [crossover_text(n, rows), *_further(n, cells)]
    return " ".join(texts)


def crossover_text(n: int, rows: Mapping[str, Mapping[int, float]]) -> str:
    """Returns a sentence: from which batch, or images per update, on data parallelism is faster."""
    model = rows[COARSE]
    by_batch = fastest([rows[name] for name in SERVERS])
    synchronous = [rows[name] for name in SERVERS if name.endswith(" synchronous")]
    by_update = as_updates(fastest(synchronous), n)
    return (
        f"At N = {n} the fastest servers are ahead of the coarse partition "
        f"{_since_batch(model, by_batch)}; at "
        f"equal images per update, synchronous servers are ahead {_since_batch(model, by_update)}."
    )


def _since_batch(model: Mapping[int, float], data: Mapping[int, float]) -> str:
    """Returns a phrase that says from which batch on data parallelism is faster.

    model, data: seconds by batch.
    """
    common = sorted(set(model) & set(data))
    batch = crossover(model, data)
    if batch is not None:
        return f"from batch {batch} on"
    return (
        f"at none of the batches {', '.join(map(str, common))}" if common else "at no common batch"
    )


def _further(n: int, cells: CellsByRow) -> list[str]:
    """Returns sentences that compare the rows FURTHER with the best model parallelism and all-reduce."""
    others = {
        "the table's fastest model parallelism": fastest(
            [seconds(cells, n, model_row) for model_row in MODEL]
        ),
        "all-reduce of as many images a step": as_updates(seconds(cells, n, DDP), n),
    }
    texts = []
    for row in FURTHER:
        row_seconds = seconds(cells, n, row)
        for name, theirs in others.items():
            ratios = [row_seconds[b] / theirs[b] for b in row_seconds if b in theirs]
            if ratios:
                texts.append(f"{row} takes {_span(ratios)} of the time of {name}.")
    return texts


def _span(ratios: Sequence[float]) -> str:
    """Returns the range of some numbers as text, such as "0.80 to 1.20"."""
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return low if low == high else f"{low} to {high}"


PART = Part("grid", TITLE, make)
