"""Times OptCNN's search (groups, tables and elimination), without the capture of the graph.

This is the part `search` of `raddle reproduce optcnn`. The paper is OptCNN (Jia et al., arXiv 1802.04924).

Tables have the cost of each configuration of each group of operators; elimination finds the cheapest plan.
"""

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
SAMPLES = 32  # per GPU


class SearchTime(NamedTuple):
    """The result and the duration of a search."""

    seconds: float  # of the fastest of several searches
    tables: Tables
    certified: bool  # the search proved that no plan in the tables is cheaper


def time_search(case: WeakScalingCase, repeats: int) -> SearchTime:
    """Searches `repeats` times, with the paper's costs (paper=True: parameter servers)."""
    seconds = []
    for _ in range(repeats):
        begun = perf_counter()
        tables = build_tables(case.graph, case.cluster, paper=True)
        _, solution = choose_configurations(tables)
        seconds.append(perf_counter() - begun)
    return SearchTime(min(seconds), tables, solution.certified)


def log10_plan_count(tables: Tables) -> float:
    """Returns log10 of the number of plans in the search space."""
    return math.fsum(math.log10(len(configurations)) for configurations in tables.configurations)


def search(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    counts = (4, 16) if options.quick else (4, 16, 64)
    rows: list[list[Cell]] = []
    slower = []
    for number, (model, printed) in enumerate(PRINTED.items()):
        for count in counts:
            options.report(f"{model} on {count}", number / len(PRINTED))
            search_time = time_search(
                WeakScalingCase(model, "p100", count, SAMPLES), 5 if count < 64 else 2
            )
            printed_here = printed if count == 4 else None
            if printed_here is not None and search_time.seconds > printed_here:
                slower.append(f"{model} ({search_time.seconds / printed_here:.1f} x)")
            rows.append(
                [model, count, len(search_time.tables.groups),
                 f"10^{log10_plan_count(search_time.tables):.0f}", search_time.seconds, printed_here,
                 "yes" if search_time.certified else "no"]
            )  # fmt: skip
    # Column: name, source of its numbers ("counted": from a plan alone), digits after the point
    columns = (
        Column("network"), Column("GPUs"), Column("groups", "counted"), Column("plans", "counted"),
        Column("seconds", "measured"), Column("in the paper", "printed"), Column("proven best"),
    )  # fmt: skip
    note = (
        "One core of this machine; the best of several. Not counted: capturing the network (seconds) and "
        "compiling raddle's kernels on first use. The paper's processor is another one."
    )
    text = f"Slower than the paper's on 4 GPUs: {', '.join(slower) if slower else 'none'}."
    return Section(TITLE, text, [Table("Groups, tables and elimination", columns, rows, note)])
