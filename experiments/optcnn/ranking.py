"""Ranks plans of an AlexNet-like network on two ranks by simulated and by measured step time.

This is the part `ranking` of `raddle reproduce optcnn`. The paper is OptCNN (Jia et al., arXiv 1802.04924).
"""

from __future__ import annotations

from experiments import ten_plans
from experiments.cost_models.plans import PlanGroup
from experiments.experiment import RunOptions
from raddle.api.planning import BASELINES
from raddle.api.results import Section

TITLE = "Simulated and measured order"
PRINTED = "The paper's cost model is -5 to +9 % off its measurements, on GPUs."
CHANGES = 4  # groups of operators in which a random plan differs from data parallelism


def ranking(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    # network, batch, ranks, and 0 random plans of the group: ten_plans.py draws them itself
    group = PlanGroup("alexnet", 16, 2, 0)
    # BASELINES: data parallelism and other methods without a search
    plan_times = ten_plans.measure_plans(group, (*BASELINES, "optcnn"), CHANGES, options)
    return ten_plans.section(TITLE, group, plan_times, PRINTED)
