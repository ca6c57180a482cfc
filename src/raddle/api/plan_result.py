"""The result of planning: a plan with its graph, its cluster, and the predicted metrics.

A `Plan` is plain data. A `PlanResult` joins it with what the plan was made for, so that it can be
simulated, explained, verified and drawn. `raddle.plan` and `raddle.load_plan` return one.

A plan file has no graph. If it names a model that can be loaded, the result of `load_plan` is bound to that
model. If not, the result has only what the file says, and asks for the model when more is needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from raddle.api.costs import load_optional_profile
from raddle.api.explaining import Explanation, explain_simulated
from raddle.api.simulating import DrawnTimeline, drawn
from raddle.clusters import Cluster
from raddle.clusters import cluster as find_cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError, quote
from raddle.files import write_json
from raddle.graph.graph import Graph
from raddle.plans.optimizers import check_optimizer
from raddle.plans.plan import Plan
from raddle.plans.plan_file import save
from raddle.reports.notebook import result_html
from raddle.reports.units import bytes_text, count_text, plural, seconds_text
from raddle.searches.predict import METRICS, metrics_of_file, simulate_steps
from raddle.simulation.timeline import Timeline
from raddle.zoo.workload import Workload

__all__ = ["PlanResult", "SimulatedPlan", "UnboundPlan", "simulate"]


@dataclass(frozen=True, eq=False)
class SimulatedPlan:
    """A plan with all that its simulation needs, and the simulation once it was needed."""

    plan: Plan
    graph: Graph  # of the largest micro-batch
    cluster: Cluster
    profile: Profile | None = None
    simulation: Timeline | None = None  # None: it is simulated when it is needed
    metrics: Mapping[str, Any] | None = None  # None: those of the simulation and of the plan file
    # The module with the batch and the loss that the plan was made for; None: only the graph was given, or
    # the name of a model.
    workload: Workload | None = None

    @cached_property
    def timeline(self) -> DrawnTimeline:
        return drawn(
            self.simulation or simulate_steps(self.graph, self.plan, self.cluster, self.profile)
        )

    @cached_property
    def row(self) -> Mapping[str, Any]:
        return self.metrics or metrics_of_file(self.plan, self.timeline)

    def __getstate__(self) -> dict[str, Any]:
        """Returns what is pickled: all fields but the workload: a module has no place in a file."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"workload": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> SimulatedPlan:
        return self  # nothing in it changes


@dataclass(frozen=True, eq=False)
class UnboundPlan:
    """The content of a plan file whose model cannot be loaded by its name."""

    path: str
    content: Mapping[str, Any]  # of plan_file.read
    cluster: Cluster
    problem: str  # why there is no model, as "it names no model"

    @property
    def row(self) -> Mapping[str, Any]:
        plan_fields = ("method", "bn", "sync", "microbatches", "schedule")
        return {
            **dict.fromkeys(METRICS),
            **{key: self.content.get(key) for key in plan_fields},
            "stages": len(self.content.get("stages", ())) or 1,
            **self.content["predicted"],
        }


@dataclass(frozen=True, eq=False, repr=False)
class PlanResult:
    """A plan with its graph, its cluster and the predicted metrics; made by `raddle.plan`.

    >>> import raddle
    >>> result = raddle.plan("mlp-tiny", 8, cluster="local:2", method="data")
    >>> result.fits, result.plan.devices, result.row["sync"]
    (True, 2, 'allreduce')
    """

    content: SimulatedPlan | UnboundPlan

    @property
    def bound(self) -> SimulatedPlan:
        """The plan with its graph. Raises InputError if the model of a plan file is not there."""
        if isinstance(self.content, UnboundPlan):
            raise InputError(
                f"{quote(self.content.path)} has no graph, and {self.content.problem}: use "
                "raddle.load_plan(path, model=..., example=..., loss=...), or on the command line --model "
                "file.py:function."
            )
        return self.content

    @property
    def plan(self) -> Plan:
        """The plan, as plain data."""
        return self.bound.plan

    @property
    def graph(self) -> Graph:
        """The graph that the plan is for; if a step has several micro-batches, that of the largest."""
        return self.bound.graph

    @property
    def cluster(self) -> Cluster:
        """The cluster on which the plan is simulated."""
        return self.content.cluster

    @property
    def timeline(self) -> DrawnTimeline:
        """The simulation of a few steps of the plan."""
        return self.bound.timeline

    @property
    def row(self) -> Mapping[str, Any]:
        """The predicted metrics by name, as `raddle plan --json` prints them."""
        return self.content.row

    @property
    def step_ms(self) -> float:
        """The milliseconds of a step."""
        return float(self._metric("step_ms"))

    @property
    def samples_per_s(self) -> float:
        """The samples that are trained in a second."""
        return float(self._metric("samples_per_s"))

    @property
    def fits(self) -> bool:
        """Whether the plan fits into the memory of the devices."""
        return bool(self._metric("fits"))

    @property
    def peak_bytes(self) -> int:
        """The most memory that a device needs."""
        return int(self._metric("peak_bytes"))

    def _metric(self, name: str) -> Any:
        value = self.row.get(name)
        if value is None:  # a plan file without predictions: `bound` says what is missing
            value = self.bound.row[name]
        return value

    def explain(self, op: str | None = None) -> Explanation:
        """Explains where the time of a step goes or, with an operator's name, what its other splits cost.

        The explanation is a mapping, which prints as text.
        """
        bound = self.bound
        return explain_simulated(bound.graph, bound.plan, bound.timeline, op, bound.profile)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a file, which `load_plan`, `parallelize` and the command line read."""
        if isinstance(self.content, UnboundPlan):
            write_json(os.fspath(path), dict(self.content.content))
        else:
            save(self.content.plan, self.content.graph, os.fspath(path))

    def __repr__(self) -> str:
        return f"<PlanResult {_heading(self)}: {_summary(self)}>"

    def _repr_html_(self) -> str:
        """Returns the picture of the result that notebooks show: its metrics, and each device's step."""
        timeline = None if isinstance(self.content, UnboundPlan) else self.timeline
        return result_html(_heading(self), _summary(self), timeline)


def _heading(result: PlanResult) -> str:
    """Return the name of a result: model, batch, method and devices."""
    if isinstance(result.content, UnboundPlan):
        content = result.content.content
        model, batch, devices = content["model"], content["batch"], content["devices"]
    else:
        plan = result.content.plan
        model, batch, devices = plan.model, plan.batch, plan.devices
    what = f"{model or 'a model'}, batch {batch}, {result.row['method'] or 'a plan'}"
    return f"{what} on {plural(devices, 'device')} of {result.cluster.name}"


def _summary(result: PlanResult) -> str:
    """Return the most important metrics of a result."""
    if result.row.get("step_ms") is None:
        return "without a prediction"
    memory = f"{bytes_text(result.peak_bytes)} of memory at most"
    return ", ".join(
        [
            f"{seconds_text(result.step_ms / 1e3)} a step",
            f"{count_text(result.samples_per_s)} samples/s",
            memory if result.fits else f"{memory}, which does not fit",
        ]
    )


def simulate(
    result: PlanResult,
    *,
    cluster: Cluster | str | os.PathLike[str] | None = None,
    profile: Profile | str | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
) -> DrawnTimeline:
    """Returns the simulation of a plan: when each device and link is busy in a few steps.

    In a notebook the timeline is a picture. cluster: simulate there. profile: measured times of operators,
    or the path of their file. precision, optimizer: simulate with these. None: those of the result.

    >>> import raddle
    >>> result = raddle.plan("mlp-tiny", 8, cluster="local:2", method="data")
    >>> timeline = raddle.simulate(result, cluster="p100:1x2")
    >>> timeline.cluster.name, timeline.step_seconds < result.timeline.step_seconds
    ('p100:1x2', True)
    """
    if not isinstance(result, PlanResult):
        raise InputError(
            f"raddle.simulate takes a result, not a {type(result).__name__}: make one with raddle.plan, or "
            "read one with raddle.load_plan."
        )
    bound = result.bound
    if cluster is None and profile is None and precision is None and optimizer is None:
        return bound.timeline
    where = bound.cluster if cluster is None else find_cluster(cluster)
    measured = bound.profile if profile is None else load_optional_profile(profile)
    changed = replace(
        bound.plan, precision=precision or bound.plan.precision,
        optimizer=optimizer or bound.plan.optimizer,
    )  # fmt: skip
    check_optimizer(changed.optimizer)  # a precision is checked with the plan
    return SimulatedPlan(changed, bound.graph, where, measured).timeline
