"""Compares hypergraphs and partitions of VGG-16 with the tables that the thesis prints (part `tables`).

This is the part `tables` of `raddle reproduce thesis`. The thesis is that of B. Eserol (docs/papers.md).

*Weights* are here the work of layers, which partitions balance. The thesis does not print its weights:
*reconstructed* ones are derived from its Tables 5.1 and 5.5 (printed.py). A *part* is what one device
gets. `theirs` is printed, `ours` raddle's by the same method, `further` are methods that are not printed.
*FLOPs* in the name of a method: its weights are the FLOPs of a forward (partitions.py).
A StepVolume (partitions.py) has the bytes of a step and the imbalance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.experiment import Part, RunOptions
from experiments.thesis import appendix, epoch, weights
from experiments.thesis.partitions import (
    AUTO,
    MI,
    MIXED,
    StepVolume,
    WeightedPartitioners,
    make_partitioners,
    measure_other_methods,
    partition_as_printed,
    table,
    vgg16,
    volume_of_plan,
)
from experiments.thesis.printed import COARSE, FINE, LAYERWISE, PARTS, PrintedTable
from experiments.thesis.printed_epoch import EPOCH_BATCHES, EPOCH_HYPERGRAPH
from raddle.api.partitioning import PartitionResult
from raddle.api.results import Chart, Drawing, Line, Section, Table

TITLE = "Work and communication of partitions (Tables 5.1 to 5.12, A.1 to A.12, 5.14)"
# by number of parts and name of a method: of the thesis's tables (Ours), of other methods (Further)
Ours = Mapping[int, Mapping[str, PartitionResult]]
Further = Mapping[int, Mapping[str, StepVolume]]


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    counts = PARTS[:4] if options.quick else PARTS
    # seconds of a search; most parts for which plans are searched
    budget, most_plans = (0.5, 4) if options.quick else (3.0, 128)
    # for the profile of operators
    batch, repeats = (1, 1) if options.quick else (4, 3)
    options.report(f"profiling VGG-16 at batch {batch}")
    measured = weights.profiled_weights(batch, repeats)
    partitioners = make_partitioners(vgg16(), measured)
    ours: dict[int, Mapping[str, PartitionResult]] = {}
    further: dict[int, Mapping[str, StepVolume]] = {}
    for i, parts in enumerate(counts):
        options.report(f"VGG-16 in {parts} parts", 0.1 + 0.6 * i / len(counts))
        ours[parts] = partition_as_printed(partitioners, parts, budget)
        further[parts] = measure_other_methods(partitioners, parts, budget, most_plans)
    shown: list[Table | Chart | Drawing] = [
        weights.weight_table(partitioners.by_flops, measured, batch),
        weights.hypergraph_table(partitioners.by_reconstruction),
    ]  # fmt: skip
    shown += [table(n, ours[n], further[n]) for n in counts]
    shown.append(chart(partitioners, ours, further))
    shown += appendix.tables(partitioners.by_reconstruction, counts, budget, options)
    options.report("an epoch", 0.9)
    epoch_bytes = _epoch(partitioners, further, 0.0 if options.quick else budget)
    return Section(TITLE, text(ours, further, epoch_bytes), [*shown, epoch_bytes.table])


def _epoch(partitioners: WeightedPartitioners, further: Further, budget: float) -> epoch.EpochBytes:
    """Returns the bytes of an epoch. Batches other than 32 are searched only if budget > 0."""
    coarse = {n: further[n]["coarse-grain, FLOPs"].nbytes for n in EPOCH_HYPERGRAPH}
    nbytes: dict[str, dict[tuple[int, int], int]] = {MIXED: {}, AUTO: {}}
    for batch in EPOCH_BATCHES if budget else (32,):
        graph = partitioners.graph if batch == 32 else vgg16(batch)
        for n in EPOCH_HYPERGRAPH:
            for method, bytes_of_method in nbytes.items():
                if batch != 32:
                    bytes_of_method[n, batch] = volume_of_plan(graph, method, n, budget).nbytes
                elif method in further[n]:
                    bytes_of_method[n, batch] = further[n][method].nbytes
    return epoch.count_epoch(partitioners.parameters, coarse, nbytes)


def chart(partitioners: WeightedPartitioners, ours: Ours, further: Further) -> Chart:
    """Returns a chart of MiB per step over the number of parts."""
    lines = []
    for theirs in (COARSE, FINE):
        # x 8: 4 bytes per element, forward and backward
        points = [(n, 8 * theirs.rows[n].volume) for n in ours]
        lines.append(Line(f"{theirs.name}, printed", points, "printed"))
        points = [(n, ours[n][theirs.name].volume_bytes / MI) for n in ours]
        lines.append(Line(theirs.name, points, "counted"))
    for name in ("data parallelism", "mixed, least bytes", MIXED, AUTO):
        points = [
            (n, volumes[name].nbytes / MI) for n, volumes in further.items() if name in volumes
        ]
        lines.append(Line(name, points, "counted"))
    return Chart(
        "Communication by number of parts", "parts", "MiB a step", lines, log_x=True, log_y=True,
        note="Printed volumes are of a forward in Mi elements; here they are multiplied by 8, as float32 "
        "has 4 bytes and a step has a forward and a backward.",
    )  # fmt: skip


def text(ours: Ours, further: Further, epoch_bytes: epoch.EpochBytes) -> str:
    """Returns a summary in sentences, computed from the results."""
    first = (
        "Our volumes divided by the printed ones, where the work of layers (weights) is reconstructed from "
        "the thesis's Tables 5.1 and 5.5: "
        f"layer-wise, {_ratios(ours, LAYERWISE)}; coarse, at most as uneven as printed, "
        f"{_ratios(ours, COARSE)}; fine, {_ratios(ours, FINE)}."
    )
    saved = "; ".join(f"{name}: {share}" for name, share in epoch_bytes.saved.items())
    second = (
        f"In Table 5.14, the printed partitions save {epoch_bytes.saved_printed:.0%} of data parallelism's "
        f"bytes on average, if both are counted in bytes (the table has partitions in elements of 4 "
        f"bytes). Ours: {saved}."
    )
    return "\n\n".join([first, _mixed_text(further), second])


def _ratios(ours: Ours, theirs: PrintedTable) -> str:
    """Returns our volume divided by the printed one, for each number of parts, as text."""
    return ", ".join(
        f"{results[theirs.name].volume / MI / theirs.rows[n].volume:.3g} (N = {n})"
        for n, results in ours.items()
        if n in theirs.rows
    )


def _mixed_text(further: Further) -> str:
    """Returns a sentence: bytes if every layer chooses its own axis, relative to other partitions."""
    parts: Sequence[str] = [
        f"{volumes['mixed, least bytes'].nbytes / volumes['coarse-grain, FLOPs'].nbytes:.2f} "
        f"of the bytes of the coarse partition (weights: FLOPs) and "
        f"{volumes['mixed, least bytes'].nbytes / volumes['data parallelism'].nbytes:.3f} of "
        f"those of data parallelism at N = {n}"
        for n, volumes in further.items()
        if "mixed, least bytes" in volumes
    ]
    return "Where every layer chooses its axis, a step sends " + "; ".join(parts) + "."


PART = Part("tables", TITLE, make)
