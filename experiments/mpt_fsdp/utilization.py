"""Predicts model FLOPs utilization (MFU) and memory of the published runs, and judges the predictions.

This is the part `utilization` of `raddle reproduce mpt-fsdp`. For each token, MFU counts 6 FLOPs for each
parameter, and 12 · layers · width · sequence for attention, as if no key were hidden and nothing
recomputed; it divides them by the peak. Errors are relative: |predicted / measured - 1|.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import NamedTuple

import torch

import raddle
from experiments.experiment import RunOptions
from experiments.mpt_fsdp.networks import MPT, SHAPES, example, next_token_loss
from experiments.mpt_fsdp.published import Run, read_runs
from experiments.rank_correlation import spearman
from raddle.api.clusters import cluster
from raddle.api.models import Graph
from raddle.api.planning import plan_for
from raddle.api.programs import Update
from raddle.api.results import Cell, Chart, Column, Line, Section, Table
from raddle.api.simulating import Timeline, peak_bytes, simulate_steps

PER_NODE = 8
PEAK = 989.4e12  # FLOP/s by which the publisher divides
CONSTANT = 40.0  # percent: the prediction that has to be beaten
QUICK = ("760m", "1b")  # models that are predicted with --quick
GB = 1e9


class Prediction(NamedTuple):
    """A published run, and what raddle predicts for it."""

    run: Run
    mfu: float  # percent
    peak: int  # bytes of the device that needs most
    capacity: int  # bytes of a device

    @property
    def error(self) -> float:
        """By how much the predicted utilization is too high, as a fraction."""
        return self.mfu / self.run.mfu - 1


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    runs = [run for run in read_runs() if not options.quick or run.model in QUICK]
    predictions = []
    for number, run in enumerate(runs):
        options.report(f"{run.model} on {run.gpus}", number / len(runs))
        predictions.append(predict(run))
    return Section(
        "Model FLOPs utilization and memory",
        f"{summary(predictions)}\n\n{memory_sentence(predictions)}",
        [judgement(predictions), table(predictions), chart(predictions)],
    )


def predict(run: Run) -> Prediction:
    """Simulates one micro-batch of a run, and returns the prediction for a step."""
    on = cluster(f"h100:{run.gpus // PER_NODE}x{PER_NODE}")
    graph = capture(run)
    plan = plan_for(
        graph, on, "data", sync="sharded:parameters", precision="bf16:pure", optimizer="adamw"
    )
    plan = replace(plan, recompute=layers(graph) if run.recompute else ())
    timeline = simulate_steps(graph, plan, on)
    update = update_seconds(timeline)
    seconds = run.accumulate * (timeline.step_seconds - update) + update
    shard = 4 * run.parameters // run.gpus if run.accumulate > 1 else 0  # float32
    tokens = run.microbatch * run.accumulate * run.sequence  # of a GPU in a step
    mfu = 100 * tokens * flops_per_token(run) / seconds / PEAK
    return Prediction(run, mfu, max(peak_bytes(timeline)) + shard, on.devices[0].memory)


def capture(run: Run) -> Graph:
    """Returns the graph of a micro-batch on all GPUs, without memory for the model."""
    with torch.device("meta"):
        model = MPT(SHAPES[run.model], run.sequence)
    batch = example(run.sequence, run.microbatch * run.gpus)
    return raddle.capture(model, batch, next_token_loss, name=f"mpt-{run.model}")


def layers(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Returns the operators of each layer of the decoder: operators are named after their modules."""
    by_layer: dict[str, list[str]] = {}
    for op in graph.ops:
        if op.name.startswith("blocks."):
            by_layer.setdefault(op.name.split(".")[1], []).append(op.name)
    return tuple(map(tuple, by_layer.values()))


def update_seconds(timeline: Timeline) -> float:
    """Returns the seconds that device 0 updates parameters in a step."""
    program, tasks = timeline.program, timeline.tasks
    nanoseconds = sum(
        int(duration)
        for number, device, duration in zip(
            tasks.instruction, tasks.device, tasks.duration, strict=True
        )
        if device == 0 and isinstance(program.instructions[number], Update)
    )
    return nanoseconds / 1e9 / program.plan.steps


def flops_per_token(run: Run) -> int:
    """Returns the FLOPs of a token in a step, as the publisher counts them."""
    shape = SHAPES[run.model]
    return 6 * run.parameters + 12 * shape.layers * shape.width * run.sequence


# -- tables ----------------------------------------------------------------------------------------


def errors(predicted: Sequence[float], runs: Sequence[Run]) -> list[float]:
    """Returns the relative error of each predicted utilization."""
    return [abs(mfu / run.mfu - 1) for mfu, run in zip(predicted, runs, strict=True)]


def rank_correlation(predictions: Sequence[Prediction]) -> float:
    """Returns Spearman's correlation of predicted and measured utilization."""
    return spearman([p.mfu for p in predictions], [p.run.mfu for p in predictions])


def summary(predictions: Sequence[Prediction]) -> str:
    """Returns a sentence with the errors of the predictions."""
    wrong = errors([p.mfu for p in predictions], [p.run for p in predictions])
    worst = max(predictions, key=lambda p: abs(p.error))
    return (
        f"The mean error of MFU over {len(predictions)} runs is {mean(wrong):.1%}, the worst "
        f"{max(wrong):.1%} ({worst.run.model}, {worst.run.sequence} tokens, {worst.run.gpus} GPUs), "
        "the rank correlation "
        f"{rank_correlation(predictions):.2f}."
    )


def memory_sentence(predictions: Sequence[Prediction]) -> str:
    """Returns a sentence that says how many of the runs are predicted to fit."""
    fitting = [p for p in predictions if p.peak <= p.capacity]
    largest = max(predictions, key=lambda p: p.peak)
    return (
        f"{len(fitting)} of {len(predictions)} runs are predicted to fit; the fullest needs "
        f"{largest.peak / GB:.1f} of {largest.capacity / GB:.0f} GB "
        f"({largest.run.model} on {largest.run.gpus})."
    )


def judgement(predictions: Sequence[Prediction]) -> Table:
    """Returns a table that compares raddle's errors with those of a constant utilization."""
    runs = [p.run for p in predictions]
    columns = [
        Column("prediction"), Column("mean error, %", "simulated"), Column("worst error, %", "simulated"),
        Column("rank correlation", "simulated", 2),
    ]  # fmt: skip
    by_raddle = errors([p.mfu for p in predictions], runs)
    by_constant = errors([CONSTANT] * len(runs), runs)
    correlation = rank_correlation(predictions)
    rows: list[list[Cell]] = [
        ["raddle", 100 * mean(by_raddle), 100 * max(by_raddle),
         None if math.isnan(correlation) else correlation],
        [f"constant {CONSTANT:.0f} % MFU", 100 * mean(by_constant), 100 * max(by_constant), None],
    ]  # fmt: skip
    return Table("Errors of the predicted utilization", columns, rows)


def table(predictions: Sequence[Prediction]) -> Table:
    """Returns a table with a row for each run."""
    columns = [
        Column("model"), Column("tokens"), Column("GPUs"), Column("samples"), Column("accumulate"),
        Column("recompute"), Column("MFU, %", "printed", 1), Column("MFU, %", "simulated", 1),
        Column("error, %", "simulated", 1), Column("peak, GB", "simulated", 1),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [
            p.run.model, p.run.sequence, p.run.gpus, p.run.microbatch, p.run.accumulate,
            "yes" if p.run.recompute else "no", p.run.mfu, p.mfu, 100 * p.error, p.peak / GB,
        ]
        for p in predictions
    ]  # fmt: skip
    note = "Tokens: of a sample. Samples: of a GPU in a micro-batch. Accumulate: micro-batches of a step."
    return Table("By run", columns, rows, note)


def chart(predictions: Sequence[Prediction]) -> Chart:
    """Returns a chart of predicted over measured utilization; perfect predictions lie on the line."""
    points = sorted((p.run.mfu, p.mfu) for p in predictions)
    ends = [points[0][0], points[-1][0]]
    return Chart(
        "Predicted over measured utilization", "measured MFU, %", "predicted MFU, %",
        [Line("raddle", points, "simulated"), Line("perfect", [(x, x) for x in ends], "printed")],
    )  # fmt: skip
