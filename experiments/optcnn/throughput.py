"""Compares simulated throughput and bytes of OptCNN's plans with data, model and OWT parallelism.

This is the part `throughput` of `raddle reproduce optcnn`. The paper is OptCNN (Jia et al., arXiv
1802.04924).

OWT: "one weird trick", data parallel convolutions and model parallel linear layers. StepsByMethod
(simulate_methods.py) has a SimulatedStep (a plan and its predicted step) by method and number of GPUs.
"optcnn-paper" plans with the paper's costs (parameter servers), "optcnn" with those of an all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from experiments.experiment import RunOptions
from experiments.optcnn.additive import additive_cost, baselines
from experiments.simulate_methods import (
    SYNCS,
    SimulatedStep,
    StepsByMethod,
    WeakScalingCase,
    fastest,
    gain_over_best,
    simulate_method,
    throughput_chart,
)
from raddle.api.results import Cell, Chart, Column, Section, Table
from raddle.api.searching import build_tables, choose_configurations

TITLE = "Throughput and communication"
BASELINES = ("data", "model", "owt")
NAMES = {
    "data": "data", "model": "model", "owt": "OWT", "optcnn-paper": "OptCNN, as the paper counts",
    "optcnn": "OptCNN", "auto": "auto",
}  # fmt: skip
SAMPLES = 32  # per GPU


class PrintedGains(NamedTuple):
    """The gains that the paper prints for one network."""

    over_best: float  # times the throughput of the best of data, model and OWT, at most
    scaling: float  # throughput on 16 GPUs divided by that on one


PRINTED = {
    "alexnet": PrintedGains(2.2, 12.2), "vgg16": PrintedGains(1.5, 14.8),
    "inception_v3": PrintedGains(1.4, 15.5)
}  # fmt: skip
PRINTED_BYTE_RATIOS = "1.3–23"  # times less is communicated, over all networks and baselines


class ModelThroughput(NamedTuple):
    """The simulated steps of one network with one kind of synchronisation."""

    model: str
    sync: str
    steps: StepsByMethod
    max_gpus: int  # the largest number of GPUs

    @property
    def method(self) -> str:
        """The name of OptCNN's method: with servers, the one with the paper's costs."""
        return "optcnn-paper" if self.sync == "server" else "optcnn"


def throughput(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    counts = (1, 4, 16) if options.quick else (1, 2, 4, 8, 16)
    throughputs = []
    for number, model in enumerate(PRINTED):
        for sync_number, sync in enumerate(SYNCS):
            done = (number + sync_number / len(SYNCS)) / len(PRINTED)
            options.report(f"{model}, {SYNCS[sync]}", done)
            throughputs.append(
                _simulate_model(model, sync, counts, budget=2.0 if options.quick else 10.0)
            )
    added = {model: _additive_gain(model, counts[-1]) for model in PRINTED}
    return Section(
        TITLE,
        _text(throughputs),
        [
            _gains_table(throughputs, added),
            _byte_table(throughputs),
            *(_chart(result) for result in throughputs),
        ],
    )


def _simulate_model(model: str, sync: str, counts: Sequence[int], budget: float) -> ModelThroughput:
    """Simulates all methods; `auto`, the slowest to plan, only on the most devices."""
    steps: dict[tuple[str, int], SimulatedStep | None] = {}
    for count in counts:
        case = WeakScalingCase(model, "p100", count, SAMPLES)
        optcnn_method = "optcnn-paper" if sync == "server" else "optcnn"
        for method in (*BASELINES, optcnn_method):
            steps[method, count] = simulate_method(case, method, sync, budget)
        if count == counts[-1] and sync == "allreduce":
            steps["auto", count] = simulate_method(case, "auto", "auto", budget)
    return ModelThroughput(model, sync, steps, counts[-1])


def _additive_gain(model: str, count: int) -> float:
    """Returns OptCNN's gain over the best baseline under the paper's additive cost, without overlap."""
    case = WeakScalingCase(model, "p100", count, SAMPLES)
    tables = build_tables(case.graph, case.cluster, paper=True)
    # [1]: the Solution, with the cost of the cheapest plan
    optimum = choose_configurations(tables)[1].cost
    return (
        min(additive_cost(tables, configurations) for configurations in baselines(tables).values())
        / optimum
    )


# -- tables ----------------------------------------------------------------------------------------


def _gains_table(throughputs: Sequence[ModelThroughput], added: dict[str, float]) -> Table:
    """Returns a table of OptCNN's throughput and gains on the most GPUs.

    added: by network, OptCNN's gain over the best baseline under its additive cost (_additive_gain).
    """
    most = throughputs[0].max_gpus
    # Column: name, source of its numbers ("counted": from a plan alone), digits after the point
    columns = (
        Column("network"), Column("synchronised by"), Column("best other"),
        Column("its images/s", "simulated"), Column("OptCNN's", "simulated"),
        Column("times the best other", "simulated"), Column("by OptCNN's cost", "counted"),
        Column("in the paper, up to", "printed"),
        Column(f"1 to {most} GPUs, times", "simulated"), Column("in the paper", "printed"),
    )  # fmt: skip
    rows = [list(_gains_row(result, added[result.model])) for result in throughputs]
    note = (
        f"{SAMPLES} images a GPU, {most} P100 in nodes of 4. By OptCNN's cost: the cost of the best other "
        "plan divided by that of the optimum, where the cost is the sum of OptCNN's tables, with a server "
        "for each layer and nothing overlapped."
    )
    return Table(f"Against the best other on {most} GPUs", columns, rows, note)


def _gains_row(result: ModelThroughput, added: float) -> Iterator[Cell]:
    """Yields the cells of one network; added: its entry in `added` of _gains_table."""
    printed, other = PRINTED[result.model], fastest(result.steps, BASELINES, result.max_gpus)
    optcnn = result.steps[result.method, result.max_gpus]
    # other: the fastest baseline, as (name of the method, its step)
    yield from (result.model, SYNCS[result.sync])
    yield from (NAMES[other[0]], other[1].samples_per_s) if other else (None, None)
    yield optcnn.samples_per_s if optcnn else None
    yield gain_over_best(result.steps, result.method, BASELINES, result.max_gpus)
    yield from (added if result.sync == "server" else None, printed.over_best)
    yield from (scaling_factor(result), printed.scaling)


def scaling_factor(result: ModelThroughput) -> float | None:
    """Returns the throughput on the most GPUs divided by that on one."""
    on_one, on_most = result.steps[result.method, 1], result.steps[result.method, result.max_gpus]
    return on_most.samples_per_s / on_one.samples_per_s if on_one and on_most else None


def _byte_table(throughputs: Sequence[ModelThroughput]) -> Table:
    """Returns a table of the bytes that a step sends between devices, by method."""
    most = throughputs[0].max_gpus
    columns = (
        Column("network"), Column("synchronised by"),
        *(Column(f"{NAMES[m]}, GB", "counted") for m in BASELINES),
        Column("OptCNN, GB", "counted"), Column("least of the others, times"),
        Column("most, times"), Column("in the paper, times", "printed"),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for result in throughputs:
        steps = [result.steps[m, most] for m in (*BASELINES, result.method)]
        gigabytes = [s.comm_bytes / 1e9 if s else None for s in steps]
        less = byte_ratios(result)  # how many times less OptCNN sends, ascending
        rows.append(
            [result.model, SYNCS[result.sync], *gigabytes, *((less[0], less[-1]) if less else (None, None)),
             PRINTED_BYTE_RATIOS]
        )  # fmt: skip
    note = (
        f"Bytes between devices in a step on {most} GPUs; times: the least and the most bytes of data, "
        "model and OWT parallelism, divided by OptCNN's. A dash: the plan does not fit a card's memory."
    )
    return Table(f"Communication of a step on {most} GPUs", columns, rows, note)


def byte_ratios(result: ModelThroughput) -> list[float]:
    """Returns the bytes of each baseline divided by OptCNN's, sorted."""
    optcnn = result.steps[result.method, result.max_gpus]
    baseline_steps = (result.steps[m, result.max_gpus] for m in BASELINES)
    return sorted(
        s.comm_bytes / optcnn.comm_bytes
        for s in baseline_steps
        if s and optcnn and optcnn.comm_bytes
    )


def _chart(result: ModelThroughput) -> Chart:
    """Returns a chart of samples per second over the number of GPUs, with a line for each method."""
    title = f"{result.model}, synchronised by {SYNCS[result.sync]}: images a second"
    names = {m: name for m, name in NAMES.items() if any(key[0] == m for key in result.steps)}
    return throughput_chart(title, result.steps, names)


# -- words -----------------------------------------------------------------------------------------


def _text(throughputs: Sequence[ModelThroughput]) -> str:
    """Returns sentences that compare the simulated gains with the printed ones."""
    sentences = []
    for result in throughputs:
        gain, scaling = (
            gain_over_best(result.steps, result.method, BASELINES, result.max_gpus),
            scaling_factor(result),
        )
        if gain is None or scaling is None:
            sentences.append(f"{result.model} with {SYNCS[result.sync]}: a plan is missing.")
            continue
        printed = PRINTED[result.model]
        sentences.append(
            f"{result.model} with {SYNCS[result.sync]}: {gain:.2f} x the best other (the paper: up to "
            f"{printed.over_best}), {scaling:.1f} x one GPU (the paper: {printed.scaling})."
        )
    behind = [
        f"{result.model} with {SYNCS[result.sync]}"
        for result in throughputs
        if (gain_over_best(result.steps, result.method, BASELINES, result.max_gpus) or 0)
        < PRINTED[result.model].over_best
    ]
    if behind:
        sentences.append(f"Less than the paper's gain over the best other: {'; '.join(behind)}.")
    autos = [
        (result.model, g)
        for result in throughputs
        if (g := gain_over_best(result.steps, "auto", BASELINES, result.max_gpus))
    ]
    if autos:
        gains = ", ".join(f"{model} {gain:.2f} x" for model, gain in autos)
        sentences.append(f"raddle's auto over the best other, with all-reduce: {gains}.")
    return "\n\n".join(sentences)
