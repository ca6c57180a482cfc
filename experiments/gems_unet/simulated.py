"""Images a second and peaks on GPUs that are not here, to images of 8192 x 8192: simulated."""

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
LARGE = "h200:4"  # what 8192 x 8192 needs, and no four V100 have
QUICK = (("unet", 512, CLUSTER), ("unet", 8192, LARGE), ("resnet110", 512, CLUSTER))
FULL = (
    *(("unet", side, CLUSTER) for side in (64, 256, 512, 1024, 2048, 4096, 8192)),
    *(("resnet110", side, CLUSTER) for side in (64, 512, 2048, 8192)),
    *(("resnet1001", side, CLUSTER) for side in (64, 1024)),  # minutes a size
    *((net, 8192, LARGE) for net in NETS),
)


class SimulatedCase(NamedTuple):
    net: str
    side: int
    on: str  # the cluster
    capacity: int  # bytes of a device
    predicted: Mapping[str, PredictedStep]
    errors: Mapping[str, str]  # methods that have no plan, and why

    def rates(self) -> dict[str, float]:
        return {name: BATCH / own.seconds for name, own in self.predicted.items()}

    def fitting(self) -> dict[str, float]:
        """The rates of those that fit."""
        peaks = self.peaks()
        return {name: rate for name, rate in self.rates().items() if peaks[name] <= self.capacity}

    def peaks(self) -> dict[str, float]:
        return {name: float(max(own.peaks)) for name, own in self.predicted.items()}


def make(asked: RunOptions) -> Section:
    found, cases = [], QUICK if asked.quick else FULL
    for number, (net, side, name) in enumerate(cases):
        asked.report(f"{net}, {side}² on {name}", number / len(cases))
        found.append(simulate_case(net, side, cluster(name), budget=4.0 if asked.quick else 10.0))
    return section(found)


def section(found: Sequence[SimulatedCase]) -> Section:
    text = [f"Simulated in float32, a batch of {BATCH}."]
    for net, on in dict.fromkeys((own.net, own.on) for own in found):
        text.append(_sentence([own for own in found if (own.net, own.on) == (net, on)]))
    charts = [_chart(net, found) for net in NETS if any(own.net == net for own in found)]
    title = "Images per second and memory to 8192², simulated"
    return Section(title, "\n\n".join(text), [*charts, _table(found)])


def simulate_case(net: str, side: int, on: Cluster, budget: float) -> SimulatedCase:
    spec = nets.spec(net, side)
    graph = capture_model(spec, BATCH)
    made = make_plans(METHODS, graph, on, batch=BATCH, model=spec)
    predicted = {name: predict(own, on) for name, own in made.items()}
    errors = {}
    try:
        predicted[AUTO] = predict(plan_auto(graph, on, spec, budget), on)
    except InputError as error:
        errors[AUTO] = str(error)
    return SimulatedCase(net, side, on.name, on.devices[0].memory, predicted, errors)


def plan_auto(graph: Graph, on: Cluster, spec: str, budget: float) -> PlannedMethod:
    plan = plan_for(graph, on, AUTO, model=spec, optimizer=OPTIMIZER, budget=budget)
    return PlannedMethod(graph.for_batch(-(-plan.batch // plan.microbatches)), plan)


def _sentence(found: Sequence[SimulatedCase]) -> str:
    """Of one network on one cluster."""
    first, last = found[0], found[-1]
    sides = " to ".join(dict.fromkeys(f"{own.side}²" for own in (first, last)))
    where = f"{first.net}, {sides} on {first.on} ({format_size(first.capacity, GIB)} GiB each)"
    said = gems_sentence(where, [(own.rates(), own.peaks()) for own in found])
    return " ".join(
        [said, *(_fitting_sentence(own) for own in found if len(own.fitting()) < len(METHODS))]
    )


def _fitting_sentence(own: SimulatedCase) -> str:
    """What is left where memory is short."""
    fitting = own.fitting()
    if not fitting:
        return f"At {own.side}² nothing fits."
    fastest = max(fitting, key=fitting.__getitem__)
    others = ", ".join(name for name in fitting if name != fastest)
    return f"At {own.side}² the fastest that fits is {fastest}" + (
        f"; so do {others}." if others else ", and nothing else does."
    )


def _chart(net: str, found: Sequence[SimulatedCase]) -> Chart:
    own = [f for f in found if f.net == net and f.on == CLUSTER]
    names = list(dict.fromkeys(name for f in own for name in f.predicted))
    lines = [
        Line(name, [(f.side, f.rates()[name]) for f in own if name in f.predicted], "simulated")
        for name in names
    ]
    title = f"{net} on {CLUSTER}, whether it fits or not"
    return Chart(title, "side of an image, pixels", "images/s", lines, log_x=True, log_y=True)


def _table(found: Sequence[SimulatedCase]) -> Table:
    columns = [
        Column("net"), Column("side"), Column("cluster"), Column("method"), Column("images/s", "simulated"),
        Column("step, ms", "simulated"), Column("largest peak, GiB", "simulated"),
        Column("least peak, GiB", "simulated"), Column("fits", "simulated"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for net, side, on, room, predicted, errors in found:
        for name, own in predicted.items():
            rows.append([
                net, side, on, name, BATCH / own.seconds, 1e3 * own.seconds, max(own.peaks) / GIB,
                min(own.peaks) / GIB, "yes" if max(own.peaks) <= room else "no",
            ])  # fmt: skip
        rows += [[net, side, on, name, None, None, None, None, "no"] for name in errors]
    note = (
        f"A batch of {BATCH} images, nothing is computed again but by auto; peaks over the devices."
    )
    return Table("By network, size and method", columns, rows, note)
