"""Tables, charts and sentences that compare the cost models, made from the measured plans.

A *group* is one model on some ranks; its plans are compared (plans.py). *Regret*: how much slower the plan
predicted to be best is than the best one (accuracy.py).
"""

# e: relative error, m: name of a cost model, p: prediction, v: Accuracy
# `fit`: predictions of a group are multiplied by one factor (accuracy.py); `plain` errors are without it

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby

from experiments.cost_models.accuracy import Accuracy, measure_accuracy, relative_errors
from experiments.cost_models.costs import IN_SECONDS, MODELS
from experiments.cost_models.measure_plans import MeasuredPlan
from raddle.api.results import Cell, Chart, Column, Line, Section, Table

PlansByGroup = Mapping[str, Sequence[MeasuredPlan]]
Accuracies = Mapping[tuple[str, str], Accuracy]  # by group and cost model

# A sentence of the notes below tables, which explains two of the cost models.
ADDITIVE = (
    "OptCNN and 'additive, sync as run' add up the times of all computations, transfers and "
    "synchronisations, as if nothing overlapped; OptCNN takes parameter servers, the other the plan's "
    "sync kind."
)
# The range of relative errors that the papers print for their own models.
PRINTED = {
    "optcnn": ("OptCNN", -0.05, 0.09),
    "simulator": ("FlexFlow", -0.30, 0.30),
}


def section(title: str, measured_plans: Sequence[MeasuredPlan]) -> Section:
    """Returns the section with all tables, charts and sentences.

    measured_plans: sorted by group, because groups are formed from neighbours.
    """
    groups = {
        name: list(members)
        for name, members in groupby(measured_plans, key=lambda plan: plan.group)
    }
    accuracies = {
        (name, model): measure_accuracy(predicted(members, model), seconds(members))
        for name, members in groups.items()
        for model in MODELS
    }
    tables = (
        summary_table(groups, accuracies), group_table(groups, accuracies),
        scatter_chart(groups, accuracies),
        kind_table(measured_plans), printed_error_table(measured_plans), plan_table(measured_plans),
    )  # fmt: skip
    return Section(title, text(groups, accuracies), tables)


def predicted(measured_plans: Sequence[MeasuredPlan], model: str) -> list[float]:
    """Returns the cost of each plan under a cost model (a key of MODELS)."""
    return [float(getattr(plan.costs, model)) for plan in measured_plans]


def seconds(measured_plans: Sequence[MeasuredPlan]) -> list[float]:
    """Returns the measured seconds of a step of each plan."""
    return [plan.times.seconds for plan in measured_plans]


# -- tables ----------------------------------------------------------------------------------------


def summary_table(groups: PlansByGroup, accuracies: Accuracies) -> Table:
    """Returns a table with one row for each cost model, over all groups."""
    plans = [plan for members in groups.values() for plan in members]
    rows: list[list[Cell]] = []
    for model, title in MODELS.items():
        by_group = [accuracies[name, model] for name in groups]
        together = measure_accuracy(predicted(plans, model), seconds(plans))
        fitted = [
            abs(e)
            for name, members in groups.items()
            for e in _fitted_errors(members, model, accuracies[name, model].factor)
        ]
        plain = [abs(e) for e in relative_errors(predicted(plans, model), seconds(plans))]
        rows.append([
            title,
            mean([v.spearman for v in by_group]), mean([v.kendall for v in by_group]),
            together.spearman, together.kendall,
            percent(statistics.median(fitted)), percent(max(fitted)),
            *([percent(statistics.median(plain)), percent(max(plain))]
              if model in IN_SECONDS else [None, None]),
            percent(mean([v.regret for v in by_group])), percent(max(v.regret for v in by_group)),
        ])  # fmt: skip
    heads = (  # name and digits of a column
        ("Spearman, mean of groups", 2), ("Kendall, mean of groups", 2),
        ("Spearman, all plans", 2), ("Kendall, all plans", 2),
        ("median error, %", 0), ("worst error, %", 0),
        ("median error without fit, %", 0), ("worst error without fit, %", 0),
        ("mean regret, %", 1), ("worst regret, %", 1),
    )  # fmt: skip
    # Column: name, source of its numbers ("counted": from a plan alone), digits after the point
    columns = [Column("cost model"), *(Column(name, "measured", digits) for name, digits in heads)]
    note = (
        f"{len(plans)} plans in {len(groups)} groups; a group is one model on so many ranks. {ADDITIVE} "
        "Errors are relative to the measured time, after the predictions of each group were multiplied by "
        "one factor, the median of measured over predicted in that group (the fit); errors without fit are "
        "given for models that predict seconds. Regret: how much slower the plan that is predicted to be "
        "best in a group is than the best. All plans together are ranked more easily than "
        "those of a group, for the groups themselves take different times."
    )
    return Table("Which cost model ranks best", columns, rows, note)


def group_table(groups: PlansByGroup, accuracies: Accuracies) -> Table:
    """Returns a table with one row for each group and cost model."""
    rows: list[list[Cell]] = []
    for name, members in groups.items():
        best = min(members, key=lambda plan: plan.times.seconds)
        for model, title in MODELS.items():
            v = accuracies[name, model]
            plain = relative_errors(predicted(members, model), seconds(members))
            rows.append([
                name, title, v.spearman, v.kendall, percent(v.median_error), percent(v.worst_error),
                percent(statistics.median(map(abs, plain))) if model in IN_SECONDS else None,
                members[v.predicted_best].name, best.name, percent(v.regret),
            ])  # fmt: skip
    columns = (
        Column("group"), Column("cost model"), Column("Spearman", "measured", 2),
        Column("Kendall", "measured", 2), Column("median error, %", "measured", 0),
        Column("worst error, %", "measured", 0), Column("median error without fit, %", "measured", 0),
        Column("ranked first"), Column("best", "measured"), Column("regret, %", "measured", 1),
    )  # fmt: skip
    return Table(
        "Group by group",
        columns,
        rows,
        "Errors after the fit of one factor for each group, as above.",
    )


def kind_table(measured_plans: Sequence[MeasuredPlan]) -> Table:
    """Returns a table with one row for each kind of plan (pipelines, servers and shards, ...)."""
    kinds: dict[str, list[MeasuredPlan]] = {}
    for plan in measured_plans:
        kinds.setdefault(plan.kind, []).append(plan)
    rows: list[list[Cell]] = []
    for kind, members in kinds.items():
        errors_by_model = [
            relative_errors(predicted(members, model), seconds(members)) for model in IN_SECONDS
        ]
        # [-1]: of the simulator, the last of IN_SECONDS
        worst = max(errors_by_model[-1], key=abs)
        medians: list[Cell] = [percent(statistics.median(each)) for each in errors_by_model]
        rows.append(
            [
                kind,
                len(members),
                *medians,
                percent(worst),
                members[errors_by_model[-1].index(worst)].name,
            ]
        )
    columns = (
        Column("kind of plan"), Column("plans"),
        *(Column(f"{MODELS[model]}: median error, %", "measured", 0) for model in IN_SECONDS),
        Column("simulator's worst, %", "measured", 0), Column("of plan"),
    )  # fmt: skip
    note = "Without a fit; negative: the plan took longer than predicted."
    return Table("Where predictions are off", columns, rows, note)


def printed_error_table(measured_plans: Sequence[MeasuredPlan]) -> Table:
    """Returns a table of the range of errors here, next to the range that the papers print."""
    rows: list[list[Cell]] = []
    for model, (paper, low, high) in PRINTED.items():
        errors = relative_errors(predicted(measured_plans, model), seconds(measured_plans))
        inside = sum(low <= e <= high for e in errors) / len(errors)
        printed, here = [percent(low), percent(high)], [percent(min(errors)), percent(max(errors))]
        rows.append([MODELS[model], paper, *printed, *here, percent(inside)])
    columns = (
        Column("cost model"), Column("claim of"), Column("from, %", "printed", 0),
        Column("to, %", "printed", 0), Column("from, % ", "measured", 0),
        Column("to, % ", "measured", 0), Column("plans inside of the printed, %", "measured", 0),
    )  # fmt: skip
    note = "Errors without a fit. The papers' errors are of other plans, on GPUs that did nothing else."
    return Table("Beside what is printed", columns, rows, note)


def plan_table(measured_plans: Sequence[MeasuredPlan]) -> Table:
    """Returns a table with one row for each plan: measured times, and costs under all models."""
    rows: list[list[Cell]] = []
    for plan in measured_plans:
        c, t = plan.costs, plan.times
        rows.append([
            plan.group, plan.name, 1e3 * t.seconds, percent((t.longest - t.shortest) / t.seconds),
            c.flops / 1e9, c.volume / 1e6, 1e3 * c.optcnn, 1e3 * c.additive, 1e3 * c.simulator,
            percent(c.simulator / t.seconds - 1),
        ])  # fmt: skip
    columns = (
        Column("group"), Column("plan"), Column("step, ms", "measured", 1),
        Column("least to most, %", "measured", 0), Column("busiest device, GFLOP", "counted", 2),
        Column("volume, MB", "counted", 2), Column("OptCNN, ms", "simulated", 1),
        Column("additive, sync as run, ms", "simulated", 1), Column("simulator, ms", "simulated", 1),
        Column("simulator off, %", "measured", 0),
    )  # fmt: skip
    note = (
        f"MB are 10^6 bytes that cross devices in a step. {ADDITIVE} Least to most: the slowest block of "
        "steps minus the fastest, divided by the median of the blocks, which is the step in this table."
    )
    return Table("All plans", columns, rows, note)


def scatter_chart(groups: PlansByGroup, accuracies: Accuracies) -> Chart:
    """Returns a chart of predicted over measured step times, a point for each plan and cost model."""
    lines = []
    for model, title in MODELS.items():
        points = [
            (1e3 * plan.times.seconds, 1e3 * accuracies[name, model].factor * p)
            for name, members in groups.items()
            for plan, p in zip(members, predicted(members, model), strict=True)
            if p > 0
        ]
        source = "simulated" if model in IN_SECONDS else "counted"
        lines.append(Line(title, sorted(points), source))
    return Chart(
        "Predicted over measured", "measured step, ms", "predicted step, ms", lines,
        log_x=True, log_y=True,
        note="After the fit of one factor for each group. A perfect model has all points on the "
        "diagonal; plans without volume are not drawn.",
    )  # fmt: skip


# -- sentences -------------------------------------------------------------------------------------


def text(groups: PlansByGroup, accuracies: Accuracies) -> str:
    """Returns the paragraphs above the tables."""
    return "\n\n".join([_winners(groups, accuracies), _losses(groups, accuracies), _noise(groups)])


def _winners(groups: PlansByGroup, accuracies: Accuracies) -> str:
    """Returns sentences that say which cost model ranks best, and with which the chosen plan is best."""
    correlation = {m: mean([accuracies[name, m].spearman for name in groups]) for m in MODELS}
    regret = {m: mean([accuracies[name, m].regret for name in groups]) for m in MODELS}
    # nan is not equal to itself, and comes last
    ranked = sorted(
        correlation, key=lambda m: -correlation[m] if correlation[m] == correlation[m] else 2.0
    )
    least_regret = min(regret, key=regret.__getitem__)
    words = ", ".join(f"{MODELS[m]} {correlation[m]:.2f}" for m in ranked)
    return (
        f"Spearman's rank correlation with the measured order, mean of groups: {words}. Whoever takes the "
        f"plan that is ranked first loses least with {MODELS[least_regret]} "
        f"({regret[least_regret]:.1%} on average; "
        f"{MODELS['simulator']}: {regret['simulator']:.1%})."
    )


def _losses(groups: PlansByGroup, accuracies: Accuracies) -> str:
    """Returns a sentence about the groups in which another model is better than the simulator."""
    lost = []
    for name in groups:
        simulator = accuracies[name, "simulator"]
        better = [
            f"{title} ranks better ({accuracies[name, m].spearman:.2f} against {simulator.spearman:.2f})"
            for m, title in MODELS.items()
            if accuracies[name, m].spearman > simulator.spearman + 0.005
        ] + [
            f"{title} chooses better (regret {accuracies[name, m].regret:.1%} against "
            f"{simulator.regret:.1%})"
            for m, title in MODELS.items()
            if accuracies[name, m].regret < simulator.regret - 0.0005
        ]  # fmt: skip
        if better:
            lost.append(f"{name}: {'; '.join(better)}")
    if not lost:
        return "In no group does another model rank or choose better than the simulator."
    return f"The simulator loses in {len(lost)} of {len(groups)} groups. " + ". ".join(lost) + "."


def _noise(groups: PlansByGroup) -> str:
    """Returns a sentence that says how much the time of the same plan varies between blocks of steps."""
    all_times = [plan.times for members in groups.values() for plan in members]
    spread = statistics.median((t.longest - t.shortest) / t.seconds for t in all_times)
    return (
        f"Half of the plans differ by more than {spread:.0%} of their time between their fastest and their "
        "slowest block of steps: no model can rank plans whose times are closer together than that."
    )


def _fitted_errors(
    measured_plans: Sequence[MeasuredPlan], model: str, factor: float
) -> list[float]:
    """Returns the relative error of each plan after its prediction was multiplied by the factor."""
    return relative_errors(
        [factor * p for p in predicted(measured_plans, model)], seconds(measured_plans)
    )


def mean(values: Sequence[float]) -> float:
    """Returns the mean of the values that are not nan; nan if there are none.

    A correlation is nan if a model predicts the same for all plans of a group.
    """
    real = [v for v in values if not math.isnan(v)]
    return statistics.fmean(real) if real else math.nan


def percent(share: float) -> float:
    """Returns a share (0 to 1) in percent."""
    return 100 * share
