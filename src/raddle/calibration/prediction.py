"""Predicts the step of a measurement on a cluster whose numbers change, as `raddle simulate` would.

The plan and its program are made once, on the cluster as it is given; only their simulation is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from raddle.calibration.measurements import Measurement, part_of_cluster
from raddle.calibration.named_numbers import with_values
from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.pipelining import steps_to_simulate
from raddle.plans.plan import Plan
from raddle.plans.sync import KINDS
from raddle.plans.sync.sync_kind import AFTER
from raddle.program.lower import lower
from raddle.searches.planning import build_plan, run_method
from raddle.searches.settings import Settings
from raddle.simulation.timeline import simulate

STEPS = 2  # steps to simulate; the last is that of the prediction

Capture = Callable[[str, int], Graph]  # model, batch -> graph
LoadPlan = Callable[
    [str], tuple[Graph, Plan]
]  # path of a plan file -> graph of a micro-batch, plan


class Prediction:
    """The simulated steps of one measurement.

    after: gradients are sent after the whole backward, where the sync kind has that option.
    """

    def __init__(
        self, measurement: Measurement, cluster: Cluster, capture: Capture, load_plan: LoadPlan, *,
        after: bool,
    ) -> None:  # fmt: skip
        self.measurement = measurement
        if measurement.plan:
            graph, plan = load_plan(measurement.plan)
            devices = measurement.devices or str(plan.devices)
            self.cluster = part_of_cluster(cluster, devices)
        else:
            self.cluster = part_of_cluster(cluster, measurement.devices)
            graph = capture(measurement.model, measurement.batch)
            settings = Settings(sync=measurement.sync)
            result = run_method(graph, self.cluster, measurement.method, settings)
            plan = build_plan(graph, self.cluster, measurement.method, result, settings)
            graph = result.pipeline.graph if result.pipeline is not None else graph
        if plan.devices != len(self.cluster.devices):
            raise InputError(
                f"the plan '{measurement.plan}' has {plan.devices} devices, and its row names "
                f"{len(self.cluster.devices)} of {cluster.name}."
            )
        plan = replace(plan, sync=with_after(plan.sync) if after else plan.sync)
        self.plan = replace(plan, steps=steps_to_simulate(plan, STEPS))
        self.program = lower(graph, self.plan)
        self._seconds: dict[str, float] = {}

    @property
    def measured_seconds(self) -> float:
        return self.measurement.step_seconds(self.plan.batch)

    def seconds(self, values: Mapping[str, float]) -> float:
        """Seconds of a step if the cluster had these values of its named numbers."""
        cluster = with_values(self.cluster, values)
        key = cluster.fingerprint()
        if key not in self._seconds:  # a number may have no effect here, as links on one device
            self._seconds[key] = simulate(self.program, cluster).step_seconds
        return self._seconds[key]


def with_after(sync: str) -> str:
    """The sync kind with the option `after`; unchanged if it has it or cannot have it."""
    name, colon, options = sync.partition(":")
    words = options.split(",") if colon else []
    if AFTER in words or AFTER not in KINDS[name].option_patterns or "parameters" in words:
        return sync
    return f"{name}:{','.join([*words, AFTER])}"
