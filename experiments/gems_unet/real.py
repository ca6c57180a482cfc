"""Measures images per second and peak memory on ranks of this machine, next to the predictions.

This is the part `real` of `raddle reproduce gems-unet`. The paper is GEMS (Jain et al., SC20).

METHODS (methods.py) are the compared methods; `auto` is the plan of raddle's search, which may take
`budget` seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.experiment import RunOptions
from experiments.gems_unet import nets
from experiments.gems_unet.formatting import MIB, gems_sentence, range_text, sizes_text
from experiments.gems_unet.machine import (
    measure_operators,
    probe_machine,
    seconds_with_shared_cores,
)
from experiments.gems_unet.methods import (
    DEVICES,
    METHODS,
    OPTIMIZER,
    SPATIAL,
    PlannedMethod,
    PredictedStep,
    make_plans,
    predict,
)
from experiments.rank_correlation import spearman
from experiments.timing import StepTimes, time_plans
from raddle.api.clusters import Cluster
from raddle.api.costs import Profile
from raddle.api.loading import capture_model
from raddle.api.models import Graph
from raddle.api.planning import plan_for
from raddle.api.results import Cell, Chart, Column, Line, Section, Table

BATCH = 4
AUTO = "auto"


class RealCase(NamedTuple):
    """A network and an image size that is measured."""

    net: str
    width_divisor: int  # divisor of the widths
    side: int  # height and width of an image, in pixels
    rounds: int  # blocks of steps that are timed

    @property
    def title(self) -> str:
        """The name that is shown with the progress, such as "unet/8, 64²"."""
        return f"{self.net}/{self.width_divisor}, {self.side}²"


QUICK = tuple(RealCase("unet", 8, side, 2) for side in (64, 128))  # resnet110 takes minutes to plan
FULL = (
    *(RealCase("unet", 8, side, 5 if side < 256 else 2) for side in (64, 128, 256, 512)),
    *(RealCase("resnet110", 4, side, 4 if side < 256 else 2) for side in (64, 128, 256, 512)),
    RealCase("resnet1001", 4, 64, 2),  # without spatial methods: ten times the halos of resnet110
)


class CaseResult(NamedTuple):
    """The measured and predicted steps of all methods for one case."""

    case: RealCase
    timed: Mapping[str, StepTimes]  # by method
    predicted: Mapping[str, PredictedStep]  # by method
    chosen: str  # the plan that `auto` chose, in words

    def rates(self) -> dict[str, float]:
        """Returns the measured images per second by method."""
        return {name: BATCH / times.seconds for name, times in self.timed.items()}


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    options.report("probing this machine")
    cluster = probe_machine(DEVICES, quick=options.quick)
    cases, results = QUICK if options.quick else FULL, []
    weights = [_relative_duration(case) for case in cases]
    for number, case in enumerate(cases):
        options.report(case.title, sum(weights[:number]) / sum(weights))
        results.append(_measure_case(case, cluster, budget=3.0 if options.quick else 10.0))
    return section(results)


def section(results: Sequence[CaseResult]) -> Section:
    """Returns the section with sentences, charts and a table of all cases."""
    text = [f"{DEVICES} ranks, a batch of {BATCH}, one thread each."]
    for net in dict.fromkeys(result.case.net for result in results):
        text.append(_sentence([result for result in results if result.case.net == net]))
    title = "Images per second and memory, for real"
    return Section(title, "\n\n".join(text), [*_charts(results), _table(results)])


def _measure_case(case: RealCase, cluster: Cluster, budget: float) -> CaseResult:
    """Plans, predicts and measures all methods of one case. budget: seconds of the search of `auto`."""
    spec = nets.spec(case.net, case.side, width_divisor=case.width_divisor)
    graph = capture_model(spec, BATCH)
    # a method's schedule is SPATIAL if it has no pipeline but splits every image into tiles (methods.py)
    methods = [m for m in METHODS if case.net != "resnet1001" or m.schedule != SPATIAL]
    first = make_plans(methods, graph, cluster, batch=BATCH, model=spec)
    kind, repeats = cluster.devices[0].kind, 2 if case.side >= 256 else 3
    profile = measure_operators(first.values(), kind, Profile(), repeats)
    # partition again, now with measured operators
    plans = make_plans(methods, graph, cluster, batch=BATCH, model=spec, profile=profile)
    plans[AUTO] = _auto(graph, cluster, spec, profile, budget)
    profile = measure_operators(plans.values(), kind, profile, repeats)
    predicted = {name: predict(planned, cluster, profile) for name, planned in plans.items()}
    timed = time_plans(
        spec, graph, {name: planned.plan for name, planned in plans.items()}, ranks=DEVICES,
        rounds=case.rounds, steps=1, peaks=True,
    )  # fmt: skip
    return CaseResult(case, timed, predicted, describe(plans[AUTO]))


def _auto(
    graph: Graph, cluster: Cluster, spec: str, profile: Profile, budget: float
) -> PlannedMethod:
    """Returns the plan that raddle's search chooses; budget: its seconds."""
    plan = plan_for(
        graph, cluster, AUTO, model=spec, optimizer=OPTIMIZER, profile=profile, budget=budget
    )
    return PlannedMethod(graph.for_batch(-(-plan.batch // plan.microbatches)), plan)


def describe(planned: PlannedMethod) -> str:
    """Returns the plan of `auto` in words: stages, micro-batches and the most frequent splits."""
    graph, plan = planned
    words = [f"{len(plan.stages)} stages by {plan.schedule}"] if plan.stages else []
    words += [f"{plan.microbatches} micro-batches"] if plan.microbatches > 1 else []
    splits: dict[str, int] = {}
    for op in graph.ops:
        # parts of each dimension; a tiling that is not a grid has no `parts`
        parts = getattr(plan.tiles[op.name], "parts", ())
        word = " ".join(
            f"{dim.name}/{n}" for dim, n in zip(op.space.dims, parts, strict=False) if n > 1
        )
        splits[word or "whole"] = splits.get(word or "whole", 0) + 1
    common = sorted(splits, key=lambda word: -splits[word])[:2]
    words += [f"{splits[word]} of {len(graph.ops)} operators {word}" for word in common]
    return ", ".join([*words, "recomputed"] if plan.recompute else words)


def _sentence(results: Sequence[CaseResult]) -> str:
    """Returns the summary of one network; results: of the network, by rising image size."""
    sides = " to ".join(
        dict.fromkeys(f"{result.case.side}²" for result in (results[0], results[-1]))
    )
    cases = [
        (result.rates(), {n: float(max(t.peaks)) for n, t in result.timed.items()})
        for result in results
    ]
    gems_text = gems_sentence(
        f"{results[0].case.net}/{results[0].case.width_divisor}, {sides}", cases
    )
    order = (
        "Predicted and measured steps have rank correlation "
        f"{range_text([_rank_correlation(each) for each in results])}."
    )
    losses = (
        "First losses of the methods with micro-batches of one image are within "
        f"{max(_largest_loss_difference(result) for result in results):.0e} of one device's."
    )
    chosen = "; ".join(f"{result.case.side}²: {result.chosen}" for result in results)
    return " ".join([gems_text, order, losses, f"`auto` took, at {chosen}."])


def _rank_correlation(result: CaseResult) -> float:
    """Returns the rank correlation of measured and predicted seconds, over the methods."""
    names = list(result.timed)
    return spearman(
        [result.timed[n].seconds for n in names],
        [seconds_with_shared_cores(result.predicted[n]) for n in names],
    )


def _largest_loss_difference(result: CaseResult) -> float:
    """Returns the largest difference between a first loss and that of one device.

    Left out: methods whose micro-batches (may) have several images, because their batch statistics
    differ.
    """
    reference = result.timed["one device"].losses[0]
    return max(
        abs(times.losses[0] - reference)
        for name, times in result.timed.items()
        if name not in ("GEMS MAST", "spatial", AUTO)
    )


def _charts(results: Sequence[CaseResult]) -> list[Chart]:
    """Returns a chart for each network: images per second over the side, with a line for each method."""
    charts = []
    for net in dict.fromkeys(result.case.net for result in results):
        of_net = [each for each in results if each.case.net == net]
        lines = [
            Line(
                name,
                [(case_result.case.side, case_result.rates()[name]) for case_result in of_net],
                "measured",
            )
            for name in of_net[0].timed
        ]
        title = f"{net}, widths / {of_net[0].case.width_divisor}"
        charts.append(
            Chart(title, "side of an image, pixels", "images/s", lines, log_x=True, log_y=True)
        )
    return charts


def _table(results: Sequence[CaseResult]) -> Table:
    """Returns a table with a row for each case and method: measured and predicted steps and peaks."""
    # Column: name, source of its numbers, digits after the point
    columns = [
        Column("net"), Column("side"), Column("method"), Column("images/s", "measured"),
        Column("step, ms", "measured", 0), Column("least – most, ms", "measured"),
        Column("step, ms, a core each", "simulated", 0),
        Column("step, ms, cores shared", "simulated", 0),
        Column("peak by rank, MiB", "measured"), Column("peak by rank, MiB", "simulated"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for case, timed, predicted, _ in results:
        for name, times in timed.items():
            prediction = predicted[name]
            rows.append([
                f"{case.net}/{case.width_divisor}", case.side, name, BATCH / times.seconds,
                1e3 * times.seconds,
                f"{1e3 * times.shortest:.0f} – {1e3 * times.longest:.0f}",
                1e3 * prediction.seconds, 1e3 * seconds_with_shared_cores(prediction),
                sizes_text(times.peaks, MIB), sizes_text(prediction.peaks, MIB),
            ])  # fmt: skip
    note = (
        f"A batch of {BATCH} on {DEVICES} ranks of this machine, one thread each; widths divided by the "
        "number after the slash. Predicted from operators measured one by one, on links as probed; with "
        "cores shared, a step takes at least the compute time of all ranks, summed, divided by the number "
        "of cores. Measured peaks: the most bytes that torch's allocator had given out at one time, plus "
        "the tensors that persist between steps (parameters, gradients, momentum), without the batch. MAST "
        "has two micro-batches of two images; spatial, and auto unless its description above says "
        "otherwise, compute the whole batch at once: their batch statistics are over more images."
    )
    return Table("Steps and peaks", columns, rows, note)


def _relative_duration(case: RealCase) -> float:
    """Returns a rough relative duration of a case, for the progress bar."""
    return case.rounds + 3 + case.side**2 / 128**2
