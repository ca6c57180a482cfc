"""Predicts the step time of a measurement by simulation, on clusters with different values of some numbers.

`raddle calibrate` looks for the values at which predicted and measured times agree. The plan and its
program are made once, for the given cluster; only their simulation is repeated.
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
from raddle.plans.sync import KINDS, split_sync
from raddle.plans.sync.sync_kind import AFTER
from raddle.program.lower import lower
from raddle.searches.planning import build_plan, run_method
from raddle.searches.settings import Settings
from raddle.simulation.timeline import simulate

STEPS = 2  # steps to simulate; the last one is the prediction

Capture = Callable[[str, int], Graph]  # model, batch -> graph
LoadPlan = Callable[
    [str], tuple[Graph, Plan]
]  # path of a plan file -> graph of a micro-batch, plan


class Prediction:
    """The plan of one measurement, and its simulated step time for different values of the numbers.

    cluster: the given cluster, of which the measurement may use a part. capture, load_plan: how the model
    or the plan file is loaded. after: gradients are sent after the whole backward, if the sync kind has
    that option.
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
                f"the plan '{measurement.plan}' has {plan.devices} devices, but its row names "
                f"{len(self.cluster.devices)} devices of {cluster.name}: write {plan.devices}."
            )
        plan = replace(plan, sync=with_after(plan.sync) if after else plan.sync)
        self.plan = replace(plan, steps=steps_to_simulate(plan, STEPS))
        self.program = lower(graph, self.plan)
        self._seconds: dict[str, float] = {}  # cache, by fingerprint of the cluster

    @property
    def measured_seconds(self) -> float:
        """The measured seconds of a step."""
        return self.measurement.step_seconds(self.plan.batch)

    def seconds(self, values: Mapping[str, float]) -> float:
        """Returns the seconds of a step if the cluster had these values of its named numbers."""
        cluster = with_values(self.cluster, values)
        key = cluster.fingerprint()
        # Different values may give equal clusters: one device has no links whose bandwidth could change.
        if key not in self._seconds:
            self._seconds[key] = simulate(self.program, cluster).step_seconds
        return self._seconds[key]


def with_after(sync: str) -> str:
    """Returns the sync kind with the option `after`; unchanged if it has the option or cannot have it."""
    name, words = split_sync(sync)
    if AFTER in words or AFTER not in KINDS[name].option_patterns or "parameters" in words:
        return sync
    return f"{name}:{','.join([*words, AFTER])}"
