"""Ranks ten plans of an LSTM on two ranks by simulated and by measured step time; most plans are random.

This is the part `ranking` of `raddle reproduce flexflow`. The paper is FlexFlow (Jia et al., arXiv
1807.05358).
"""

from __future__ import annotations

from experiments import nets, ten_plans
from experiments.cost_models.plans import PlanGroup
from experiments.experiment import RunOptions
from raddle.api.results import Section

TITLE = "Simulated and measured order"
PRINTED = (
    "The paper's simulator is 8.5 % off on average and 25 % at most, and keeps the order (GPUs)."
)


class SmallNetGroup(PlanGroup):
    """A PlanGroup (one model on some ranks) whose model is a function of experiments/nets.py."""

    @property
    def spec(self) -> str:
        """The name by which the model is loaded: file.py:function."""
        return nets.spec(self.function)


def ranking(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    # network, batch, ranks, and 0 random plans of the group: ten_plans.py draws them itself
    group = SmallNetGroup("lstm", 16, 2, 0)
    # None: a random plan differs from data parallelism in all groups of operators
    plan_times = ten_plans.measure_plans(group, ("data", "optcnn", "layerwise"), None, options)
    return ten_plans.section(TITLE, group, plan_times, PRINTED)
