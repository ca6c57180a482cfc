"""Simulates images per second and peak memory on GPUs, for images of up to 8192 x 8192.

This is the part `simulated` of `raddle reproduce gems-unet`. The paper is GEMS (Jain et al., SC20).

*Side*: height and width of an image, in pixels. METHODS (methods.py) are the compared methods; `auto` is
the plan of raddle's search, which may take `budget` seconds. A method *fits* if its peak memory is at
most a device's.
"""

# on: the cluster that plans are made for

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.experiment import RunOptions
from experiments.gems_unet import nets
from experiments.gems_unet.formatting import GIB, format_size, gems_sentence
from experiments.gems_unet.methods import (
    METHODS,
    OPTIMIZER,
    PlannedMethod,
    PredictedStep,
    make_plans,
    predict,
)
from raddle.api.clusters import Cluster, cluster
from raddle.api.loading import capture_model
from raddle.api.models import Graph
from raddle.api.planning import plan_for
from raddle.api.results import Cell, Chart, Column, Line, Section, Table
from raddle.errors import InputError

CLUSTER = "v100:4"  # a node of four, as the paper's machine has
BATCH = 4
AUTO = "auto"
NETS = ("unet", "resnet110", "resnet1001")
LARGE = "h200:4"  # 8192 x 8192 does not fit four V100
# network, side, cluster
QUICK = (("unet", 512, CLUSTER), ("unet", 8192, LARGE), ("resnet110", 512, CLUSTER))
FULL = (
    *(("unet", side, CLUSTER) for side in (64, 256, 512, 1024, 2048, 4096, 8192)),
    *(("resnet110", side, CLUSTER) for side in (64, 512, 2048, 8192)),
    *(("resnet1001", side, CLUSTER) for side in (64, 1024)),  # takes minutes per size
    *((net, 8192, LARGE) for net in NETS),
)


class SimulatedCase(NamedTuple):
    """The predicted steps of all methods for one network and image size on one cluster."""

    net: str
    side: int
    on: str  # the cluster
    capacity: int  # bytes of a device
    predicted: Mapping[str, PredictedStep]  # by method
    errors: Mapping[str, str]  # methods that have no plan, and why

    def rates(self) -> dict[str, float]:
        """Returns the images per second by method."""
        return {name: BATCH / prediction.seconds for name, prediction in self.predicted.items()}

    def fitting(self) -> dict[str, float]:
        """Returns the images per second of the methods that fit."""
        peaks = self.peaks()
        return {name: rate for name, rate in self.rates().items() if peaks[name] <= self.capacity}

    def peaks(self) -> dict[str, float]:
        """Returns the peak bytes of the device that needs most, by method."""
        return {name: float(max(prediction.peaks)) for name, prediction in self.predicted.items()}


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    results, cases = [], QUICK if options.quick else FULL
    for number, (net, side, name) in enumerate(cases):
        options.report(f"{net}, {side}² on {name}", number / len(cases))
        results.append(
            simulate_case(net, side, cluster(name), budget=4.0 if options.quick else 10.0)
        )
    return section(results)


def section(results: Sequence[SimulatedCase]) -> Section:
    """Returns the section with sentences, charts and a table of all cases."""
    text = [f"Simulated in float32, a batch of {BATCH}."]
    for net, on in dict.fromkeys((result.net, result.on) for result in results):
        text.append(
            _sentence([result for result in results if (result.net, result.on) == (net, on)])
        )
    charts = [_chart(net, results) for net in NETS if any(result.net == net for result in results)]
    title = "Images per second and memory to 8192², simulated"
    return Section(title, "\n\n".join(text), [*charts, _table(results)])


def simulate_case(net: str, side: int, on: Cluster, budget: float) -> SimulatedCase:
    """Plans and simulates all methods and `auto` for one case; budget: seconds of auto's search."""
    spec = nets.spec(net, side)
    graph = capture_model(spec, BATCH)
    plans = make_plans(METHODS, graph, on, batch=BATCH, model=spec)
    predicted = {name: predict(planned, on) for name, planned in plans.items()}
    errors = {}
    try:
        predicted[AUTO] = predict(plan_auto(graph, on, spec, budget), on)
    except InputError as error:
        errors[AUTO] = str(error)
    return SimulatedCase(net, side, on.name, on.devices[0].memory, predicted, errors)


def plan_auto(graph: Graph, on: Cluster, spec: str, budget: float) -> PlannedMethod:
    """Returns the plan of `auto`, with the graph of its micro-batch (whose size is rounded up)."""
    plan = plan_for(graph, on, AUTO, model=spec, optimizer=OPTIMIZER, budget=budget)
    return PlannedMethod(graph.for_batch(-(-plan.batch // plan.microbatches)), plan)


def _sentence(results: Sequence[SimulatedCase]) -> str:
    """Returns the summary of one network on one cluster."""
    first, last = results[0], results[-1]
    sides = " to ".join(dict.fromkeys(f"{result.side}²" for result in (first, last)))
    where = f"{first.net}, {sides} on {first.on} ({format_size(first.capacity, GIB)} GiB each)"
    gems_text = gems_sentence(where, [(result.rates(), result.peaks()) for result in results])
    return " ".join(
        [
            gems_text,
            *(
                _fitting_sentence(result)
                for result in results
                if len(result.fitting()) < len(METHODS)
            ),
        ]
    )


def _fitting_sentence(result: SimulatedCase) -> str:
    """Returns a sentence that says which methods fit, if not all do."""
    fitting = result.fitting()
    if not fitting:
        return f"At {result.side}² nothing fits."
    fastest = max(fitting, key=fitting.__getitem__)
    others = ", ".join(name for name in fitting if name != fastest)
    return f"At {result.side}² the fastest that fits is {fastest}" + (
        f"; also fitting: {others}." if others else ", and nothing else fits."
    )


def _chart(net: str, results: Sequence[SimulatedCase]) -> Chart:
    """Returns a chart of images per second over the side, with one line for each method."""
    on_cluster = [result for result in results if result.net == net and result.on == CLUSTER]
    names = list(dict.fromkeys(name for each in on_cluster for name in each.predicted))
    lines = [
        Line(
            name,
            [
                (case_result.side, case_result.rates()[name])
                for case_result in on_cluster
                if name in case_result.predicted
            ],
            "simulated",
        )
        for name in names
    ]
    title = f"{net} on {CLUSTER}, whether it fits or not"
    return Chart(title, "side of an image, pixels", "images/s", lines, log_x=True, log_y=True)


def _table(results: Sequence[SimulatedCase]) -> Table:
    """Returns a table with a row for each case and method."""
    # Column: name, source of its numbers, digits after the point
    columns = [
        Column("net"), Column("side"), Column("cluster"), Column("method"), Column("images/s", "simulated"),
        Column("step, ms", "simulated"), Column("largest peak, GiB", "simulated"),
        Column("least peak, GiB", "simulated"), Column("fits", "simulated"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for net, side, on, capacity, predicted, errors in results:
        for name, prediction in predicted.items():
            rows.append([
                net, side, on, name, BATCH / prediction.seconds, 1e3 * prediction.seconds,
                max(prediction.peaks) / GIB,
                min(prediction.peaks) / GIB, "yes" if max(prediction.peaks) <= capacity else "no",
            ])  # fmt: skip
        rows += [[net, side, on, name, None, None, None, None, "no"] for name in errors]
    note = (
        f"A batch of {BATCH} images; only auto may recompute activations. Largest and least peak: of the "
        "devices."
    )
    return Table("By network, size and method", columns, rows, note)
