"""Compares ring all-reduce with one server and with servers on all hosts, on 1 to 8 ranks.

This is the part `servers` of `raddle reproduce horovod`. The paper is "Horovod" (Sergeev and Del Balso,
arXiv 1802.05799).

The comparison is that of the paper's section 3. A *variant* (sync_timing.py) is one way to train: who runs
the step, and how parameters are synchronised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.experiment import RunOptions
from experiments.links import LabUnavailable
from experiments.sync_timing import DDP, NO_SYNC, SyncVariant, TimingJob, measure_in_lab, predict
from raddle.api.clusters import cores
from raddle.api.results import Cell, Chart, Column, Line, Section, Table

NET, PER_RANK, RATE = "small", 4, "500mbit"  # PER_RANK: samples of a rank
QUICK, FULL = (1, 2, 4), (1, 2, 4, 8)  # numbers of ranks
COMPUTE_ONLY = "compute alone"  # label of a variant, as the names below
RING, RING_WRAPPED, DDP_LABEL = "all-reduce", "raddle.sync", "DDP"
# one server; whole parameters, with servers on all hosts; slices of parameters, with servers on all hosts
# (greedy: the largest slice goes to the server with the fewest bytes)
ONE, WHOLE, SLICED = "ps:one", "ps", "ps:sliced,greedy"
# runner of a SyncVariant (sync_timing.py): "plan" is a data-parallel plan of raddle; "wrapped" a plain
# torch loop whose optimizer is wrapped in raddle.sync.Optimizer
VARIANTS = {
    DDP_LABEL: DDP,
    RING: SyncVariant("plan"),
    RING_WRAPPED: SyncVariant("wrapped"),
    ONE: SyncVariant("plan", ONE),
    WHOLE: SyncVariant("plan", WHOLE),
    SLICED: SyncVariant("plan", SLICED),
    f"raddle.sync, {SLICED}": SyncVariant("wrapped", SLICED),
}


class StepMilliseconds(NamedTuple):
    """Milliseconds of a step by label of a variant, for one number of ranks."""

    ranks: int
    measured: Mapping[str, float]
    simulated: Mapping[str, float]


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    title = "The ring against servers"
    sizes = QUICK if options.quick else FULL
    rows = []
    try:
        for done, ranks in enumerate(sizes):
            options.report(f"{ranks} ranks", done / len(sizes))
            rows.append(measure_ranks(ranks, quick=options.quick))
    except LabUnavailable as reason:
        return Section(title, skipped=str(reason))
    return Section(title, summary(rows), [table(rows), throughput_table(rows), chart(rows)])


def measure_ranks(ranks: int, *, quick: bool) -> StepMilliseconds:
    """Measures and predicts all variants. One rank has nothing to synchronise: DDP and compute only."""
    variants = {COMPUTE_ONLY: NO_SYNC, **(VARIANTS if ranks > 1 else {DDP_LABEL: DDP})}
    jobs = [TimingJob(NET, PER_RANK * ranks, variants)]
    rounds, steps = (2, 2) if quick else (3, 3)
    measurement = measure_in_lab(jobs, ranks=ranks, rate=RATE, rounds=rounds, steps=steps)
    measured, predicted = measurement.results[0].seconds, predict(measurement)[0]
    return StepMilliseconds(
        ranks,
        {label: 1e3 * seconds for label, seconds in measured.items()},
        {label: 1e3 * seconds for label, seconds in predicted.items()},
    )


def table(rows: Sequence[StepMilliseconds]) -> Table:
    """Returns a table of step times, measured and predicted, by variant and number of ranks."""
    # Column: name, source of its numbers, digits after the point
    columns = [Column("kind")]
    for row in rows:
        columns.append(Column(f"{row.ranks} ranks, ms", "measured"))
        columns.append(Column("predicted", "simulated"))
    cells: list[list[Cell]] = []
    for label in (COMPUTE_ONLY, *VARIANTS):
        line: list[Cell] = [label]
        for row in rows:
            line += [row.measured.get(label), row.simulated.get(label)]
        cells.append(line)
    return Table(
        "Milliseconds a step", columns, cells,
        f"VGG-19-like for 32 x 32 pixels (2.2 M parameters), {PER_RANK} samples a rank, a host each at "
        f"{RATE}, all on {cores()} cores: compute alone shows how ranks that share cores slow each other.",
    )  # fmt: skip


def throughput_table(rows: Sequence[StepMilliseconds]) -> Table:
    """Returns a table of measured samples per second, by variant and number of ranks."""
    columns = [Column("kind"), *(Column(f"{row.ranks} ranks", "measured") for row in rows)]
    cells: list[list[Cell]] = [
        [label, *(_rate(row, label) for row in rows)] for label in (COMPUTE_ONLY, *VARIANTS)
    ]
    return Table("Samples a second, all ranks together", columns, cells)


def chart(rows: Sequence[StepMilliseconds]) -> Chart:
    """Returns a chart of measured step times over the number of ranks."""
    lines = []
    for label in VARIANTS:
        points = [(float(row.ranks), row.measured[label]) for row in rows if label in row.measured]
        lines.append(Line(label, points, "measured"))
    return Chart("A step over the number of ranks", "ranks", "ms", lines, log_x=True, log_y=True)


def summary(rows: Sequence[StepMilliseconds]) -> str:
    """Returns a summary: the ratios at the largest number of ranks, and the errors of all predictions."""
    last = rows[-1]
    milliseconds = last.measured
    ratios = {label: milliseconds[label] / milliseconds[RING] for label in (ONE, WHOLE, SLICED)}
    errors = sorted(
        abs(predicted / row.measured[label] - 1)
        for row in rows
        for label, predicted in row.simulated.items()
    )
    return (
        f"On {last.ranks} ranks one server takes {ratios[ONE]:.2f} x the ring's step, distributed servers "
        f"of whole tensors {ratios[WHOLE]:.2f} x, of slices {ratios[SLICED]:.2f} x. raddle.sync, which a "
        f"script uses as it would Horovod, takes "
        f"{milliseconds[RING_WRAPPED] / milliseconds[DDP_LABEL]:.2f} x DDP's step."
        f"\n\nOf {len(errors)} predictions {sum(e <= 0.15 for e in errors)} are within 15 %; the worst is "
        f"off by {errors[-1]:.0%}."
    )


def _rate(row: StepMilliseconds, label: str) -> Cell:
    """Returns the samples per second of all ranks together; None if the variant was not measured."""
    if label not in row.measured:
        return None
    return 1e3 * PER_RANK * row.ranks / row.measured[label]
