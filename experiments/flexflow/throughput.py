"""Samples a second of FlexFlow's plans beside data parallelism and experts'."""

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
PRINTED_GAIN = 3.3  # at most, over data parallelism and experts
AUTO_GPUS = 4  # GPUs on which `auto` is asked, too: it takes minutes on more


class ModelThroughput(NamedTuple):
    """One network with one way to synchronise."""

    model: str
    sync: str
    steps: StepsByMethod

    @property
    def baselines(self) -> tuple[str, str]:
        return ("data", expert(self.model))

    @property
    def counts(self) -> list[int]:
        return sorted({count for _, count in self.steps})


def throughput(asked: RunOptions) -> Section:
    own = experiment_size(asked)
    every = []
    for number, model in enumerate(own.models):
        for at, sync in enumerate(SYNCS):
            asked.report(f"{model}, {SYNCS[sync]}", (number + at / 2) / len(own.models))
            every.append(_simulate_model(model, sync, own))
    charts = [_chart(own) for own in every if len(own.counts) > 1]
    return Section(TITLE, gains_text(every), [gains_table(every), *charts])


def _simulate_model(model: str, sync: str, own: ExperimentSize) -> ModelThroughput:
    found: dict[tuple[str, int], SimulatedStep | None] = {}
    for count in own.gpu_counts if sync == "allreduce" else own.server_counts:
        for method in ("data", expert(model), "flexflow"):
            found[method, count] = simulate_method(case(model, count), method, sync, own.budget)
        if count == AUTO_GPUS and sync == "allreduce":
            found["auto", count] = simulate_method(case(model, count), "auto", "auto", own.budget)
    return ModelThroughput(model, sync, found)


def gains_table(every: Sequence[ModelThroughput]) -> Table:
    columns = (
        Column("network"), Column("GPUs"), Column("synchronised by"),
        Column("data", "simulated"), Column("expert", "simulated"), Column("flexflow", "simulated"),
        Column("auto", "simulated"), Column("flexflow over data", "simulated"),
        Column("over the better of both", "simulated"), Column("in the paper, up to", "printed"),
        Column("data, GB", "counted"), Column("flexflow, GB", "counted"),
    )  # fmt: skip
    rows = [_row(own, count) for own in every for count in own.counts]
    note = (
        "Samples a second on K80 in nodes of 4, and bytes between GPUs in a step. Expert: 'one weird "
        "trick' for convolutional networks; a GPU for each depth on every node for recurrent ones. A dash: "
        "it does not fit the memory, or was not asked for."
    )
    return Table("Samples a second", columns, rows, note)


def _row(own: ModelThroughput, count: int) -> list[Cell]:
    methods = (*own.baselines, "flexflow", "auto")
    speeds = [s.samples_per_s if (s := own.steps.get((m, count))) else None for m in methods]
    sent = [s.comm_bytes / 1e9 if (s := own.steps.get((m, count))) else None
            for m in ("data", "flexflow")]  # fmt: skip
    return [
        own.model, count, SYNCS[own.sync], *speeds, gain_over_best(own.steps, "flexflow", ["data"], count),
        gain_over_best(own.steps, "flexflow", own.baselines, count), PRINTED_GAIN, *sent,
    ]  # fmt: skip


def _chart(own: ModelThroughput) -> Chart:
    title = f"{own.model}, synchronised by {SYNCS[own.sync]}: samples a second"
    names = {"data": "data", own.baselines[1]: "expert", "flexflow": "flexflow", "auto": "auto"}
    return throughput_chart(title, own.steps, names)


def gains_text(every: Sequence[ModelThroughput]) -> str:
    said = []
    for sync, name in SYNCS.items():
        gains = [
            (gain, f"{own.model} on {count}")
            for own in every
            if own.sync == sync
            for count in own.counts
            if (gain := gain_over_best(own.steps, "flexflow", own.baselines, count)) is not None
        ]
        if gains:
            most, least = max(gains), min(gains)
            said.append(
                f"With {name}, flexflow's plans have {least[0]:.2f} ({least[1]}) to {most[0]:.2f} x "
                f"({most[1]}) the throughput of the better of data parallelism and the expert; the "
                f"paper: up to {PRINTED_GAIN} x. {sum(gain < 1.01 for gain, _ in gains)} of {len(gains)} "
                "gain less than 1 %."
            )
    return "\n\n".join(said)
