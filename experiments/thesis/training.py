"""Measures accuracy and loss over time until 90 % training accuracy, as the thesis's Figure 5.2 does.

This is the part `accuracy` of `raddle reproduce thesis`. The thesis is that of B. Eserol (docs/papers.md).

A *kind* is a way to train: one rank (SINGLE), a coarse partition (each filter on one device) with or
without overlapping steps (COARSE, SERIAL), parameter servers (SYNC, ASYNC), or DDP (TORCH).
N: number of ranks.
"""

from __future__ import annotations

import pathlib
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch.nn import functional as F

from experiments.experiment import Part, RunOptions
from experiments.thesis.training_runs import DDP, PLAIN, SERVERS
from experiments.thesis.training_task import BATCH, RATE, TARGET, build_network, digits
from experiments.timing import run_ranks
from raddle import supervised
from raddle.api.clusters import cluster
from raddle.api.models import Graph, capture
from raddle.api.planning import plan_for
from raddle.api.plans import save_plan
from raddle.api.results import Cell, Chart, Column, Line, Section, Table
from raddle.errors import InputError
from raddle.files import read_scratch, write_scratch

TITLE = "Accuracy and loss over time (Figure 5.2)"
RANKS = (1, 2, 4)
SINGLE, COARSE = "single", "coarse hypergraph, asynchronous"
SERIAL, SYNC, ASYNC, TORCH = (
    "coarse hypergraph, synchronous",
    "servers, synchronous",
    "servers, asynchronous",
    "DDP",
)
SERVER_SYNC = "ps:distributed,greedy"  # parameters are assigned to servers on all ranks
THREADED = "threaded:4:greedy"  # four steps at once; each device runs what is ready

# Figure 5.2, by number of nodes: HOURS to 90 %, and TIMES_COARSE: a kind's time over the coarse
# hypergraph's.
HOURS = {(1, SINGLE): 122.0, (4, COARSE): 44.0}
TIMES_COARSE = {(2, ASYNC): 1.2, (2, SYNC): 2.25, (4, ASYNC): 1.5, (4, SYNC): 3.5}


class TrainingSize(NamedTuple):
    """The size of the network, and how long and how often it is trained."""

    width: int  # filters of the first layer
    blocks: int  # at most so many blocks of 32 steps are trained
    seeds: int  # how often each kind is trained, each time with another seed


QUICK, FULL = TrainingSize(16, 24, 1), TrainingSize(32, 40, 3)


class TrainingCurve(NamedTuple):
    """A run: (seconds, accuracy, loss) before the first block and after each, and a range of staleness.

    staleness: smallest and largest, or empty if training is synchronous.
    """

    curve: Sequence[tuple[float, float, float]]
    staleness: Sequence[int]

    @property
    def seconds(self) -> float | None:
        """Seconds to the target accuracy, interpolated; None if it was not reached."""
        return seconds_to_target(self.curve)


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    size = QUICK if options.quick else FULL
    try:
        images, labels = digits()
    except InputError as error:
        return Section(TITLE, skipped=str(error))
    graph = capture(
        build_network(size.width, 0), (images[:BATCH], labels[:BATCH]), supervised(F.cross_entropy)
    )
    runs_by_kind: dict[tuple[int, str], list[TrainingCurve]] = {}
    for done, ranks in enumerate(RANKS):
        options.report(
            f"{ranks} ranks train until {TARGET:.0%} of images are right", done / len(RANKS)
        )
        for label, runs in _run(graph, ranks, size).items():
            runs_by_kind[ranks, label] = [TrainingCurve(**run) for run in runs]
    return section(runs_by_kind, size, len(images))


def _run(graph: Graph, ranks: int, size: TrainingSize) -> dict[str, Any]:
    """Trains by all kinds on `ranks` ranks; returns by kind, for each seed, the fields of TrainingCurve."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        request = {
            "kinds": _kinds(graph, ranks, folder), "width": size.width, "blocks": size.blocks,
            "seeds": size.seeds, "out": str(folder / "result.json"),
        }  # fmt: skip
        write_scratch(folder / "request.json", request)
        argv = ["-m", "experiments.thesis.training_rank", str(folder / "request.json")]
        run_ranks(ranks, None, argv)
        result: dict[str, Any] = read_scratch(folder / "result.json")
    return result


def _kinds(graph: Graph, ranks: int, folder: pathlib.Path) -> dict[str, str]:
    """Returns, by name of a kind, the argument of start_run (training_runs.py): a keyword or a plan file.

    Plans are saved into the folder.
    """
    if ranks == 1:
        return {SINGLE: PLAIN}
    here = cluster(f"local:{ranks}")
    coarse = plan_for(
        graph, here, "hypergraph-coarse", sync="allreduce", budget=3.0, optimizer="momentum"
    )
    plans = {
        COARSE: replace(coarse, schedule=THREADED),
        SERIAL: coarse,
        SYNC: plan_for(graph, here, "data", sync=SERVER_SYNC, optimizer="momentum"),
    }
    kinds = {}
    for number, (label, plan) in enumerate(plans.items()):
        kinds[label] = str(folder / f"{number}.json")
        save_plan(plan, graph, folder / f"{number}.json")
    return kinds | {ASYNC: f"{SERVERS}{SERVER_SYNC},async", TORCH: DDP}


# -- results ---------------------------------------------------------------------------------------


def seconds_to_target(
    curve: Sequence[tuple[float, float, float]], target: float = TARGET
) -> float | None:
    """Returns the seconds at which a curve first reaches the target accuracy, interpolated linearly."""
    before_seconds, before_accuracy, _ = curve[0]
    for seconds, accuracy, _ in curve:
        if accuracy >= target:
            rise = accuracy - before_accuracy
            share = (target - before_accuracy) / rise if rise else 1.0
            return before_seconds + share * (seconds - before_seconds)
        before_seconds, before_accuracy = seconds, accuracy
    return None


def median_seconds(runs: Sequence[TrainingCurve]) -> float | None:
    """Returns the median over seeds; None if a run did not reach the target."""
    seconds = [run.seconds for run in runs]
    reached = [s for s in seconds if s is not None]
    return statistics.median(reached) if len(reached) == len(seconds) else None


RunsByKind = Mapping[tuple[int, str], Sequence[TrainingCurve]]  # by N and kind: a run per seed


def section(runs_by_kind: RunsByKind, size: TrainingSize, images: int) -> Section:
    """Returns the section with a table and charts; images: the number of training images."""
    seeds = f"the median of {size.seeds} seeds" if size.seeds > 1 else "one seed"
    text = (
        f"{images} digits of scikit-learn, 16 x 16, a network like VGG with {size.width} to "
        f"{4 * size.width} filters, SGD with rate {RATE:g} and momentum 0.9, batches of {BATCH} in all, "
        f"the same weights and the same order for every kind; {seeds}. {_verdict(runs_by_kind)}"
    )
    charts = [
        _chart(runs_by_kind, 1, "accuracy", "of the training images right"),
        _chart(runs_by_kind, 2, "loss", "loss"),
    ]
    return Section(TITLE, text, [_table(runs_by_kind), *charts])


def _table(runs_by_kind: RunsByKind) -> Table:
    """Returns a table with a row for each number of ranks and kind."""
    single = median_seconds(runs_by_kind[1, SINGLE])
    rows: list[list[Cell]] = []
    for (ranks, label), runs in runs_by_kind.items():
        seconds = median_seconds(runs)
        # a curve that never reaches the target stands for a missing run: median_seconds returns None
        coarse = median_seconds(
            runs_by_kind.get((ranks, COARSE), ()) or [TrainingCurve([(0.0, 0.0, 0.0)], ())]
        )
        blocks = statistics.median(len(run.curve) - 1 for run in runs)
        stale = [number for run in runs for number in run.staleness]
        rows.append([
            ranks, label, seconds, 32 * blocks, _over(single, seconds), _over(seconds, coarse),
            TIMES_COARSE.get((ranks, label)), HOURS.get((ranks, label)),
            f"{min(stale)} to {max(stale)}" if stale else None,
        ])  # fmt: skip
    # Column: name, source of its numbers, digits after the point
    columns = [
        Column("N"), Column("kind"), Column(f"s to {TARGET:.0%}", "measured"),
        Column("steps", "measured", 0), Column("x faster than single", "measured", 2),
        Column("x as long as coarse", "measured", 2), Column("x as long as coarse there", "printed", 2),
        Column("hours there", "printed", 0), Column("staleness", "measured"),
    ]  # fmt: skip
    note = (
        "Ranks are processes of this machine with a thread each. The accuracy is measured after each block "
        "of 32 steps, in which asynchronous steps overlap; the seconds are interpolated between two "
        "measurements. Staleness of the hypergraph: the number of the step minus the number of updates "
        "that its weights had had (negative: a later step had already updated them); of asynchronous "
        "servers: updates of other workers since a worker's last. There: in the thesis, with VGG-16, 50 "
        "classes of ImageNet and nodes of 56 cores; it prints no hours for the other kinds."
    )
    return Table(
        f"Seconds until {TARGET:.0%} of the training images are right", columns, rows, note
    )


def _over(a: float | None, b: float | None) -> float | None:
    """Returns a / b; None if either is missing."""
    return a / b if a is not None and b else None


def _chart(runs_by_kind: RunsByKind, at: int, title: str, y: str) -> Chart:
    """Returns a chart of the first seed. at: index of y in a point of the curve (1: accuracy, 2: loss)."""
    lines = [
        Line(
            f"{label}, N = {ranks}", [(point[0], point[at]) for point in runs[0].curve], "measured"
        )
        for (ranks, label), runs in runs_by_kind.items()
    ]
    return Chart(f"Training {title} over time", "seconds", y, lines, note="The first seed.")


def _verdict(runs_by_kind: RunsByKind) -> str:
    """Returns sentences that say which kind was fastest, and ratios next to the thesis's."""
    sentences = []
    for ranks in sorted({ranks for ranks, _ in runs_by_kind if ranks > 1}):
        seconds = {
            label: median_seconds(runs) for (n, label), runs in runs_by_kind.items() if n == ranks
        }
        reached = {label: s for label, s in seconds.items() if s is not None}
        if not reached:
            sentences.append(f"With N = {ranks} no kind reached {TARGET:.0%}.")
            continue
        first = min(reached, key=reached.__getitem__)
        sentence = f"With N = {ranks} {first} is first ({reached[first]:.1f} s)"
        if COARSE not in reached:
            sentence += f", and the asynchronous coarse hypergraph does not reach {TARGET:.0%}"
        else:
            others = [
                f"{label}: {reached[label] / reached[COARSE]:.2f} x as long (thesis: "
                f"{TIMES_COARSE[ranks, label]:g} x)"
                for label in (ASYNC, SYNC)
                if label in reached and (ranks, label) in TIMES_COARSE
            ]
            sentence += f"; the asynchronous coarse hypergraph takes {reached[COARSE]:.1f} s; "
            sentence += "; ".join(others) if others else "no kind of servers reached the target"
        sentences.append(sentence + ".")
    return " ".join(sentences)


PART = Part("accuracy", TITLE, make)
