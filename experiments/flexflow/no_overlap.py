"""Compares FlexFlow's plans with data parallelism and experts' plans if synchronisation does not overlap.

This is the part `no-overlap` of `raddle reproduce flexflow`. The paper is FlexFlow (Jia et al., arXiv
1807.05358).

If synchronisation overlaps with the backward, computing hides much of it, and a plan that synchronises
less gains little. Here gradients are also sent only after the whole backward of a device (`after`), where
nothing hides them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from experiments.experiment import RunOptions
from experiments.flexflow.cases import case, experiment_size, expert
from experiments.flexflow.throughput import PRINTED_GAIN
from experiments.simulate_methods import StepsByMethod, gain_over_best, simulate_method
from raddle.api.results import Cell, Column, Section, Table

SYNCS = ("ps:sliced", "ps:sliced,after")  # with and without overlap


class Gain(NamedTuple):
    """FlexFlow's throughput divided by that of the better of data parallelism and the expert.

    None: a plan does not fit the memory.
    """

    model: str
    gpus: int
    overlapping: float | None  # synchronisation overlaps with the backward
    after_backward: float | None  # synchronisation follows the backward


def no_overlap(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    size = experiment_size(options)
    gains = []
    for number, model in enumerate(size.models):
        for count in size.server_counts:
            options.report(f"{model} on {count}", number / len(size.models))
            gains.append(Gain(model, count, *(_gain(model, count, s, size.budget) for s in SYNCS)))
    return Section("", gains_text(gains), [gains_table(gains)])


def _gain(model: str, count: int, sync: str, budget: float) -> float | None:
    """Returns FlexFlow's throughput divided by the better baseline's; None if a plan does not fit."""
    methods = ("data", expert(model), "flexflow")
    steps: StepsByMethod = {
        (method, count): simulate_method(case(model, count), method, sync, budget)
        for method in methods
    }
    return gain_over_best(steps, "flexflow", methods[:2], count)


def gains_table(gains: Sequence[Gain]) -> Table:
    """Returns a table of the gains with and without overlap."""
    columns = (
        Column("network"), Column("GPUs"), Column("overlapping", "simulated"),
        Column("after the backward", "simulated"), Column("in the paper, up to", "printed"),
    )  # fmt: skip
    rows: list[list[Cell]] = [[*gain, PRINTED_GAIN] for gain in gains]
    note = (
        "FlexFlow's throughput over the better of data parallelism and the expert, on K80 in nodes of 4, "
        "with slices of parameters on servers. A dash: a plan does not fit the memory."
    )
    return Table("Times the better of both", columns, rows, note)


def gains_text(gains: Sequence[Gain]) -> str:
    """Returns sentences about the largest gains with and without overlap."""
    both = [(g.overlapping, g.after_backward) for g in gains]
    complete = [(a, b) for a, b in both if a is not None and b is not None]
    if not complete:
        return "No plan fits the memory."
    larger = sum(b > 1.01 * a for a, b in complete)
    most, most_after = max(a for a, _ in complete), max(b for _, b in complete)
    return (
        f"If synchronisation overlaps, flexflow's plans have up to {most:.2f} x the throughput of the "
        f"better of data parallelism and the expert; after the backward, up to {most_after:.2f} x (the "
        f"paper: up to {PRINTED_GAIN}). The gain is larger without overlap in {larger} of "
        f"{len(complete)} cases."
    )
