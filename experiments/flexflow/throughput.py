"""Compares the simulated throughput of FlexFlow's plans with data parallelism and experts' plans.

This is the part `throughput` of `raddle reproduce flexflow`. The paper is FlexFlow (Jia et al., arXiv
1807.05358).

A SimulatedStep (simulate_methods.py) is a plan and its predicted step; StepsByMethod has them by method and
number of GPUs. `auto` is raddle's search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from experiments.experiment import RunOptions
from experiments.flexflow.cases import ExperimentSize, case, experiment_size, expert
from experiments.simulate_methods import (
    SYNCS,
    SimulatedStep,
    StepsByMethod,
    gain_over_best,
    simulate_method,
    throughput_chart,
)
from raddle.api.results import Cell, Chart, Column, Section, Table

TITLE = "Throughput"
# The paper's largest gain: throughput divided by that of data parallelism and experts.
PRINTED_GAIN = 3.3
AUTO_GPUS = 4  # `auto` is planned on so many GPUs only: on more it takes minutes


class ModelThroughput(NamedTuple):
    """The simulated steps of one network with one kind of synchronisation."""

    model: str
    sync: str
    steps: StepsByMethod

    @property
    def baselines(self) -> tuple[str, str]:
        """The methods that FlexFlow is compared with."""
        return ("data", expert(self.model))

    @property
    def counts(self) -> list[int]:
        """The numbers of GPUs."""
        return sorted({count for _, count in self.steps})


def throughput(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    size = experiment_size(options)
    throughputs = []
    for number, model in enumerate(size.models):
        for sync_number, sync in enumerate(SYNCS):
            done = (number + sync_number / len(SYNCS)) / len(size.models)
            options.report(f"{model}, {SYNCS[sync]}", done)
            throughputs.append(_simulate_model(model, sync, size))
    charts = [_chart(result) for result in throughputs if len(result.counts) > 1]
    return Section(TITLE, gains_text(throughputs), [gains_table(throughputs), *charts])


def _simulate_model(model: str, sync: str, size: ExperimentSize) -> ModelThroughput:
    """Simulates all methods for one network with one kind of synchronisation."""
    steps: dict[tuple[str, int], SimulatedStep | None] = {}
    for count in size.gpu_counts if sync == "allreduce" else size.server_counts:
        for method in ("data", expert(model), "flexflow"):
            steps[method, count] = simulate_method(case(model, count), method, sync, size.budget)
        if count == AUTO_GPUS and sync == "allreduce":
            steps["auto", count] = simulate_method(case(model, count), "auto", "auto", size.budget)
    return ModelThroughput(model, sync, steps)


def gains_table(throughputs: Sequence[ModelThroughput]) -> Table:
    """Returns a table of the throughput of all methods, and of FlexFlow's gains."""
    # Column: name, source of its numbers ("counted": from a plan alone), digits after the point
    columns = (
        Column("network"), Column("GPUs"), Column("synchronised by"),
        Column("data", "simulated"), Column("expert", "simulated"), Column("flexflow", "simulated"),
        Column("auto", "simulated"), Column("flexflow over data", "simulated"),
        Column("over the better of both", "simulated"), Column("in the paper, up to", "printed"),
        Column("data, GB", "counted"), Column("flexflow, GB", "counted"),
    )  # fmt: skip
    rows = [_row(result, count) for result in throughputs for count in result.counts]
    note = (
        "Samples a second on K80 in nodes of 4, and bytes between GPUs in a step. Expert: 'one weird "
        "trick' for convolutional networks; for recurrent ones each GPU of a node has a range of layers, "
        "and nodes are data parallel. A dash: the plan does not fit the memory, or the method was not run."
    )
    return Table("Samples a second", columns, rows, note)


def _row(result: ModelThroughput, count: int) -> list[Cell]:
    """Returns the table's row of one network on `count` GPUs."""
    methods = (*result.baselines, "flexflow", "auto")
    speeds = [s.samples_per_s if (s := result.steps.get((m, count))) else None for m in methods]
    sent = [s.comm_bytes / 1e9 if (s := result.steps.get((m, count))) else None
            for m in ("data", "flexflow")]  # fmt: skip
    return [
        result.model, count, SYNCS[result.sync], *speeds,
        gain_over_best(result.steps, "flexflow", ["data"], count),
        gain_over_best(result.steps, "flexflow", result.baselines, count), PRINTED_GAIN, *sent,
    ]  # fmt: skip


def _chart(result: ModelThroughput) -> Chart:
    """Returns a chart of samples per second over the number of GPUs, with a line for each method."""
    title = f"{result.model}, synchronised by {SYNCS[result.sync]}: samples a second"
    names = {"data": "data", result.baselines[1]: "expert", "flexflow": "flexflow", "auto": "auto"}
    return throughput_chart(title, result.steps, names)


def gains_text(throughputs: Sequence[ModelThroughput]) -> str:
    """Returns sentences about the smallest and largest gains, for each kind of synchronisation."""
    sentences = []
    for sync, name in SYNCS.items():
        gains = [
            (gain, f"{result.model} on {count}")
            for result in throughputs
            if result.sync == sync
            for count in result.counts
            if (gain := gain_over_best(result.steps, "flexflow", result.baselines, count))
            is not None
        ]
        if gains:
            most, least = max(gains), min(gains)
            sentences.append(
                f"With {name}, flexflow's plans have {least[0]:.2f} ({least[1]}) to {most[0]:.2f} x "
                f"({most[1]}) the throughput of the better of data parallelism and the expert; the "
                f"paper: up to {PRINTED_GAIN} x. {sum(gain < 1.01 for gain, _ in gains)} of {len(gains)} "
                "gain less than 1 %."
            )
    return "\n\n".join(sentences)
