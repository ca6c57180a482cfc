"""Simulates OptCNN's P100 with a peak that is fitted to one GPU, and compares with what the paper measured.

This is the part `calibrated` of `raddle reproduce optcnn`. The paper is OptCNN (Jia et al., arXiv
1802.04924).

One efficiency of convolutions does not fit two networks: AlexNet's convolutions run at 3 TFLOP/s; VGG's of
3 x 3, computed by Winograd's algorithm, run above the card's peak. So each network has a peak of its own,
fitted to its step on one GPU (raddle calibrate). All else is equal for all networks: links inside a node at
LINK, adapters at their nominal rate, slices of parameters on servers. What was measured on several GPUs is
*held out*: it is compared, but not used for the fit.

measured.csv says where each throughput comes from. The paper's whole table is not in this repository: more
of its cells can be added there, and are then compared too.
"""

# on: the cluster that plans are made for

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.experiment import RunOptions
from experiments.optcnn.throughput import BASELINES, NAMES, PRINTED, SAMPLES
from experiments.simulate_methods import (
    SimulatedStep,
    StepsByMethod,
    WeakScalingCase,
    gain_over_best,
    simulate_method,
)
from raddle.api.calibrating import Measurement, calibrate, read_measurements, with_values
from raddle.api.clusters import cluster
from raddle.api.results import Cell, Column, Section, Table

MEASURED = Path(__file__).parent / "measured.csv"
SYNC = "ps:sliced"
LINK = 6e9  # bytes/s between GPUs of a node; the result of an earlier fit to data parallelism
GOAL = 0.15  # largest relative error of a simulated throughput that is good enough
OPTCNN = "optcnn-paper"  # its plans minimise the paper's cost
METHODS = (*BASELINES, OPTCNN)


class Calibrated(NamedTuple):
    """The simulated steps of one network."""

    model: str
    peak: float  # FLOP/s; fitted, if `fitted`
    fitted: bool
    steps: StepsByMethod


def calibrated(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    counts = (1, 4, 16) if options.quick else (1, 2, 4, 8, 16)
    measurements = read_measurements(str(MEASURED))
    results = []
    for number, model in enumerate(PRINTED):
        options.report(f"{model}, calibrated", number / len(PRINTED))
        results.append(_simulate(model, measurements, counts))
    compared = [row for result in results for row in compare(result, measurements)]
    return Section(
        "", _text(results, compared), [_compared_table(compared), *map(_throughput_table, results)]
    )


def _simulate(model: str, measurements: Sequence[Measurement], counts: Sequence[int]) -> Calibrated:
    """Fits the peak to the rows of one GPU, if there are any, and simulates all methods."""
    on = with_values(cluster("p100:4x4"), {"link": LINK})
    to_fit = [m for m in measurements if m.model == model and not m.held_out]
    if to_fit:
        on = calibrate(on, to_fit, ["peak"]).cluster
    steps = {
        (method, count): simulate_method(
            WeakScalingCase(model, "p100", count, SAMPLES, on), method, SYNC, 2.0
        )
        for count in counts
        for method in METHODS
    }
    return Calibrated(model, on.devices[0].flops["float32"], bool(to_fit), steps)


class ComparedCell(NamedTuple):
    """A throughput of the paper next to the simulated one, in images a second."""

    model: str
    gpus: int
    method: str
    simulated: float
    measured: float
    held_out: bool

    @property
    def off(self) -> float:
        """The relative error of the simulation; 0.1: 10 % too much throughput."""
        return self.simulated / self.measured - 1


def compare(result: Calibrated, measurements: Sequence[Measurement]) -> list[ComparedCell]:
    """Returns the cells of a network that measured.csv has, and that were simulated."""
    cells = []
    for m in measurements:
        method = OPTCNN if m.method == "optcnn" else m.method
        step = result.steps.get((method, int(m.devices)))
        if m.model == result.model and step is not None:
            rate = m.batch / m.step_seconds(m.batch)
            cells.append(
                ComparedCell(m.model, int(m.devices), method, step.samples_per_s, rate, m.held_out)
            )
    return cells


def _compared_table(cells: Sequence[ComparedCell]) -> Table:
    """Returns a table of the paper's throughputs next to the simulated ones."""
    # Column: name, source of its numbers, digits after the point
    columns = (
        Column("network"), Column("GPUs"), Column("plan"), Column("images/s", "simulated"),
        Column("in the paper", "printed"), Column("off, %", "", 1), Column("use"),
    )  # fmt: skip
    rows: list[list[Cell]] = [
        [c.model, c.gpus, NAMES[c.method], c.simulated, c.measured, 100 * c.off,
         "held out" if c.held_out else "fitted"]
        for c in cells
    ]  # fmt: skip
    note = (
        "The throughput on one GPU is not read from the paper: it follows from the peak that an earlier "
        "fit to the paper's value gave, so the two rows of one GPU agree by construction. The other rows "
        "come from the paper's step of 155 ms, and from its ratios times the throughput on one GPU. The "
        "rest of the paper's table is not in this repository (experiments/optcnn/measured.csv)."
    )
    return Table("What is printed, and what a fit to one GPU gives", columns, rows, note)


def _throughput_table(result: Calibrated) -> Table:
    """Returns a table of the images per second of one network, by method and number of GPUs."""
    columns = (Column("GPUs"), *(Column(NAMES[m], "simulated") for m in METHODS))
    counts = sorted({count for _, count in result.steps})
    rows: list[list[Cell]] = [
        [count, *(_rate(result.steps[method, count]) for method in METHODS)] for count in counts
    ]
    how = "fitted to one GPU" if result.fitted else "nominal: measured.csv has no step on one GPU"
    note = (
        f"Images a second, {SAMPLES} a GPU, {SYNC}; peak of {result.peak / 1e12:.3g} TFLOP/s, {how}; links "
        f"inside a node at {LINK / 1e9:g} GB/s."
    )
    return Table(f"{result.model}, calibrated", columns, rows, note)


def _rate(step: SimulatedStep | None) -> float | None:
    """Returns the samples per second of a step; None if there is no step."""
    return step.samples_per_s if step else None


def _text(results: Sequence[Calibrated], cells: Sequence[ComparedCell]) -> str:
    """Returns sentences about the errors of held-out throughputs and about OptCNN's gains."""
    held_out = [c for c in cells if c.held_out]
    met = sum(abs(c.off) <= GOAL for c in held_out)
    sentences = [
        f"{met} of {len(held_out)} held-out throughputs of AlexNet and VGG-16 are within "
        f"{100 * GOAL:g} %, {max(abs(c.off) for c in held_out):.0%} off at most."
        if held_out
        else "No throughput of the paper was held out."
    ]
    for result in results:
        most = max(count for _, count in result.steps)
        ratios = _ratios(result.steps, most)
        printed = PRINTED[result.model]
        sentences.append(
            f"{result.model} on {most} GPUs: OptCNN {ratios['data']} x data parallelism, "
            f"{ratios['best']} x the best other (the paper: up to {printed.over_best}), "
            f"{ratios['scaling']} x one GPU (the paper: {printed.scaling})."
        )
    sentences.append(
        "Inception-v3 has no fitted peak, and the simulation lacks its printed gain: at these rates "
        "data parallelism hides the gradients of its few parameters behind computing, so that another plan "
        "has nothing to gain."
    )
    return "\n\n".join(sentences)


def _ratios(steps: StepsByMethod, most: int) -> Mapping[str, str]:
    """Returns OptCNN's throughput on the most GPUs divided by others, as text; a dash if a plan is missing.

    data: by that of data parallelism; best: of the best baseline; scaling: of OptCNN's plan on one GPU.
    """
    on_one, on_most = steps.get((OPTCNN, 1)), steps.get((OPTCNN, most))
    numbers = {
        "data": gain_over_best(steps, OPTCNN, ["data"], most),
        "best": gain_over_best(steps, OPTCNN, BASELINES, most),
        "scaling": on_most.samples_per_s / on_one.samples_per_s if on_one and on_most else None,
    }
    return {name: "–" if n is None else f"{n:.2f}" for name, n in numbers.items()}
