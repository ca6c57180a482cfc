"""Seconds to find the optimum: groups, tables and elimination, the captured graph given."""

from __future__ import annotations

import math
from time import perf_counter
from typing import NamedTuple

from experiments.experiment import RunOptions
from experiments.simulate_methods import WeakScalingCase
from raddle.api.results import Cell, Column, Section, Table
from raddle.api.searching import Tables, build_tables, choose_configurations

TITLE = "Seconds of the search"
PRINTED = {"lenet": 0.01, "alexnet": 0.02, "vgg16": 0.1, "inception_v3": 0.4}  # seconds, 4 GPUs
SAMPLES = 32  # a GPU


class SearchTime(NamedTuple):
    seconds: float  # the best of several
    tables: Tables
    certified: bool  # that nothing is better


def time_search(case: WeakScalingCase, repeats: int) -> SearchTime:
    seconds = []
    for _ in range(repeats):
        begun = perf_counter()
        found = build_tables(case.graph, case.cluster, paper=True)
        _, solution = choose_configurations(found)
        seconds.append(perf_counter() - begun)
    return SearchTime(min(seconds), found, solution.certified)


def log10_plan_count(found: Tables) -> float:
    """The logarithm to base 10 of the number of plans that were not tried one by one."""
    return math.fsum(math.log10(len(own)) for own in found.configurations)


def search(asked: RunOptions) -> Section:
    counts = (4, 16) if asked.quick else (4, 16, 64)
    rows: list[list[Cell]] = []
    slower = []
    for number, (model, printed) in enumerate(PRINTED.items()):
        for count in counts:
            asked.report(f"{model} on {count}", number / len(PRINTED))
            own = time_search(
                WeakScalingCase(model, "p100", count, SAMPLES), 5 if count < 64 else 2
            )
            told = printed if count == 4 else None
            if told is not None and own.seconds > told:
                slower.append(f"{model} ({own.seconds / told:.1f} x)")
            rows.append(
                [model, count, len(own.tables.groups), f"10^{log10_plan_count(own.tables):.0f}", own.seconds,
                 told, "yes" if own.certified else "no"]
            )  # fmt: skip
    columns = (
        Column("network"), Column("GPUs"), Column("groups", "counted"), Column("plans", "counted"),
        Column("seconds", "measured"), Column("in the paper", "printed"), Column("proven best"),
    )  # fmt: skip
    note = (
        "One core of this machine; the best of several. Not counted: capturing the network (seconds) and "
        "compiling raddle's kernels on first use. The paper's processor is another one."
    )
    said = f"Slower than the paper's on 4 GPUs: {', '.join(slower) if slower else 'none'}."
    return Section(TITLE, said, [Table("Groups, tables and elimination", columns, rows, note)])
