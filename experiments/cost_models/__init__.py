"""Compares cost models by how well they rank plans whose step time is measured.

OptCNN (Jia et al., arXiv 1802.04924) evaluates plans by an additive cost model: the sum of all compute,
synchronisation and transfer times, as if nothing overlapped. Here that model is compared with simpler ones
(flops, volume) and with a simulation (FlexFlow, arXiv 1807.05358).

A *group* (PlanGroup, plans.py) is one model on some ranks, whose plans are compared.
"""

from __future__ import annotations

from experiments.cost_models.measure_plans import MeasuredPlan, measure_group
from experiments.cost_models.plans import FULL, QUICK, RATE
from experiments.cost_models.sections import section
from experiments.experiment import Part, RunOptions
from raddle.api.results import Section
from raddle.errors import InputError

TITLE = "Which cost model ranks plans best?"
CLAIMS = (
    "OptCNN adds up computing, synchronisation and transfers, nothing at the same time, and predicts its "
    "steps within -5 to +9 % of what was measured.",
    "FlexFlow simulates tasks on devices and links that work at the same time: less than 30 % off, and the "
    "order of plans is always as measured.",
    "Readers ask how OptCNN's cost model compares with others, which the paper does not say.",
)
DIFFERS = (
    "CPU ranks of one machine, and small networks whose step takes about 0.1 s, not GPUs and ImageNet.",
    "Plans of every method, pipelines and random tiles, not only those of one search.",
    "OptCNN's sum is counted for any plan, operator by operator, not only for those of its own tables.",
    "Links are measured while no rank computes; `raddle probe` measures them while all ranks compute.",
    "Where there are more ranks than cores, the measured times of operators are multiplied by ranks / "
    "cores.",
)


def local(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    # None: no lab
    return section("Ranks of one machine", _measure_all(options, None))


def lab(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    title = f"Hosts of the lab, {RATE} each"
    try:
        return section(title, _measure_all(options, RATE))
    except InputError as error:
        return Section(title, skipped=str(error))


def _measure_all(options: RunOptions, rate: str | None) -> list[MeasuredPlan]:
    """Measures the plans of all groups; rate: of each host's link in the lab; None: without a lab."""
    groups = QUICK if options.quick else FULL
    measured_plans: list[MeasuredPlan] = []
    for done, group in enumerate(groups):
        where = f" at {rate}" if rate else ""
        options.report(f"{group.name}{where}", done / len(groups))
        measured_plans += measure_group(group, rate, quick=options.quick)
    return measured_plans


PARTS = (
    Part("local", "Plans measured on ranks of this machine", local),
    Part("lab", f"The same plans in the lab at {RATE}", lab),
)
