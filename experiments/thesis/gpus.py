"""Simulates whether the gap between partitions and data parallelism is larger on GPUs (part `gpus`).

This is the part `gpus` of `raddle reproduce thesis`. The thesis is that of B. Eserol (docs/papers.md).

Section 6.1 of the thesis expects a larger gap on GPUs. A *row* is a kind of parallelism in Table 5.15
(lab_table.py): coarse partition (each filter on one device), servers; all-reduce is added. The gap is
the time of data parallelism divided by that of the coarse partition with several steps in flight. Both have
the same batch, counted as in Table 5.15: per worker (data parallelism), of a whole step (partition).

Differs from the thesis: simulated, not trained; VGG-16 in float32 and, on H100, in bfloat16 too.
"""

# on: the cluster that plans are made for

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from experiments.experiment import Part, RunOptions
from experiments.thesis.grid import fastest, printed
from experiments.thesis.lab_plans import DDP
from experiments.thesis.lab_table import COARSE
from experiments.thesis.simulated import SERVERS, simulate_row
from raddle.api.results import Cell, Chart, Column, Line, Section, Table

TITLE = "The thesis's prediction: a larger gap on GPUs (section 6.1)"


class ClusterCase(NamedTuple):
    """A kind of cluster for any number of devices (`case` below)."""

    name: str
    spec: str  # name of a cluster; {n} becomes the number of devices
    gpu: bool
    dtype: str = "float32"


CLUSTER_CASES = (
    ClusterCase("Xeon, 10 Gbit/s", "skylake-10gbe:{n}x1", False),
    ClusterCase("Xeon, Omni-Path", "skylake-opa:{n}x1", False),
    ClusterCase("V100, 100 Gbit/s", "v100:{n}x1", True),
    ClusterCase("V100, NVLink", "v100:1x{n}", True),
    ClusterCase("H100, 400 Gbit/s", "h100:{n}x1", True),
    ClusterCase("H100, NVLink", "h100:1x{n}", True),
    ClusterCase("H100, 400 Gbit/s, bfloat16", "h100:{n}x1", True, "bfloat16"),
    ClusterCase("H100, NVLink, bfloat16", "h100:1x{n}", True, "bfloat16"),
)


class Gap(NamedTuple):
    """Seconds of ten epochs by each kind of parallelism on one cluster; None if nothing fits the memory."""

    cluster_case: ClusterCase
    n: int  # number of devices
    batch: int
    coarse: float | None  # the coarse partition: each filter on one device
    # the fastest of SERVERS: one server or one on each device, synchronous or asynchronous
    servers: float | None
    allreduce: float | None

    @property
    def of_servers(self) -> float | None:
        """The time of the fastest servers divided by that of the coarse partition."""
        return self.servers / self.coarse if self.servers and self.coarse else None

    @property
    def of_allreduce(self) -> float | None:
        """The time of all-reduce divided by that of the coarse partition."""
        return self.allreduce / self.coarse if self.allreduce and self.coarse else None


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    counts, batches = ((4,), (32,)) if options.quick else ((2, 4, 8), (32, 128))
    wanted = [(n, batch, case) for n in counts for batch in batches for case in CLUSTER_CASES]
    gaps = []
    for i, (n, batch, case) in enumerate(wanted):
        options.report(f"{case.name}, N = {n}, batch {batch}", i / len(wanted))
        gaps.append(gap(case, n, batch))
    parts: list[Table | Chart] = [table(gaps)]
    if len(counts) > 1:
        parts += [chart(gaps, batch) for batch in batches]
    return Section(TITLE, text(gaps), parts)


def gap(case: ClusterCase, n: int, batch: int) -> Gap:
    """Simulates the rows of both kinds of parallelism on one cluster."""
    on = case.spec.format(n=n)  # name of the cluster

    def time(row: str) -> float | None:
        """Returns the seconds of a row."""
        return simulate_row(on, row, batch, dtype=case.dtype).seconds

    servers = [seconds for seconds in map(time, SERVERS) if seconds is not None]
    return Gap(case, n, batch, time(COARSE), min(servers, default=None), time(DDP))


def table(gaps: Sequence[Gap]) -> Table:
    """Returns a table with a row for each cluster, number of devices and batch."""
    # Column: name, source of its numbers, digits after the point
    columns = [
        Column("N"), Column("batch"), Column("cluster"),
        Column("coarse, s", "simulated"), Column("fastest servers, s", "simulated"),
        Column("all-reduce, s", "simulated"), Column("servers/coarse", "simulated", 2),
        Column("all-reduce/coarse", "simulated", 2), Column("servers/coarse", "printed", 2),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [
            each.n, each.batch, each.cluster_case.name, each.coarse, each.servers, each.allreduce,
            each.of_servers, each.of_allreduce, _printed(each),
        ]
        for each in gaps
    ]  # fmt: skip
    note = (
        "Seconds of ten epochs of 10,240 images. A ratio above 1: the coarse partition is ahead. "
        "Batches as in Table 5.15: of a whole step for the coarse partition, of each worker for data "
        "parallelism. A dash: it does not fit the memory, or is not printed."
    )
    return Table(
        "Time of data parallelism divided by that of the coarse partition", columns, rows, note
    )


def _printed(case_gap: Gap) -> float | None:
    """Returns the gap to servers in Table 5.15 (CPU nodes, N = 2 and 4)."""
    if case_gap.cluster_case.gpu or case_gap.n not in (2, 4):
        return None
    # printed: by batch, seconds of a row; fastest: by batch, the least seconds of all rows
    best = fastest([printed(case_gap.n, row) for row in SERVERS])
    return best[case_gap.batch] / printed(case_gap.n, COARSE)[case_gap.batch]


def chart(gaps: Sequence[Gap], batch: int) -> Chart:
    """Returns a chart of the gap to the fastest servers over the number of devices."""
    lines = [
        Line(
            case.name,
            [
                (each.n, each.of_servers)
                for each in gaps
                if (each.cluster_case, each.batch) == (case, batch) and each.of_servers is not None
            ],
            "simulated",
        )
        for case in CLUSTER_CASES
    ]
    return Chart(
        f"Time of the fastest servers divided by that of the coarse partition, batch {batch}",
        "N",
        "ratio of times",
        lines,
    )


def text(gaps: Sequence[Gap]) -> str:
    """Returns sentences: on how many GPU clusters the gap is larger than on the thesis's CPU nodes."""
    texts = [
        _compare_text("servers", [(each, each.of_servers) for each in gaps]),
        _compare_text("all-reduce", [(each, each.of_allreduce) for each in gaps]),
    ]
    return "\n\n".join(texts)


def _compare_text(what: str, gaps: Sequence[tuple[Gap, float | None]]) -> str:
    """Returns a sentence that compares the gaps on GPUs with those on CPU nodes.

    what: servers or all-reduce; gaps: each with the time of `what` divided by the coarse partition's.
    """
    gap_by_case = {
        (each.cluster_case.name, each.n, each.batch): value
        for each, value in gaps
        if value is not None
    }
    texts = []
    for base in (case for case in CLUSTER_CASES if not case.gpu):
        ratios = [
            value / gap_by_case[base.name, each.n, each.batch]
            for each, value in gaps
            if each.cluster_case.gpu
            and value is not None
            and (base.name, each.n, each.batch) in gap_by_case
        ]
        larger = sum(ratio > 1 for ratio in ratios)
        if ratios:
            texts.append(
                f"than with {base.name} in {larger} of {len(ratios)} cases "
                f"({min(ratios):.2f} to {max(ratios):.2f} x)"
            )
    ahead = sum(value > 1 for each, value in gaps if each.cluster_case.gpu and value is not None)
    of = sum(value is not None for each, value in gaps if each.cluster_case.gpu)
    return (
        f"Against {what}, the gap on GPUs is larger {' and '.join(texts)}; the coarse partition is ahead "
        f"in {ahead} of {of} cases on GPUs."
    )


PART = Part("gpus", TITLE, make)
