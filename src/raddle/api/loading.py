"""Models, profiles and plans by name, for all verbs; torch is imported when it is needed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from raddle.errors import InputError

if TYPE_CHECKING:
    from raddle.clusters import Cluster
    from raddle.costs.profile import Profile
    from raddle.graph.graph import Graph
    from raddle.plans.plan import Plan

__all__ = [
    "LoadedPlan",
    "LoadedPlans",
    "capture_model",
    "load_optional_profile",
    "load_plan",
    "load_plans",
]

MAX_SAMPLES = 2**31


def capture_model(name: str, batch: int | None, dtype: str = "float32") -> "Graph":
    """The graph of a model of the zoo or file.py:function, at a global batch or at its own."""
    import torch

    from raddle import zoo
    from raddle.graph.capture import capture

    if batch is not None and batch > MAX_SAMPLES:
        raise InputError(f"a batch of {batch} is too large: ask for at most {MAX_SAMPLES} samples.")
    workload = zoo.load(name, batch=batch, dtype=getattr(torch, dtype))
    return capture(
        workload.model,
        workload.inputs,
        targets=workload.targets,
        loss=workload.loss,
        name=workload.name,
    )


def load_optional_profile(path: str | None) -> "Profile | None":
    """The profile of a file, where one is named."""
    from raddle.costs.profile import load_profile

    return None if path is None else load_profile(path)


class LoadedPlan(NamedTuple):
    """A plan with the model that it is for, and a cluster to simulate it on."""

    graph: "Graph"
    plan: "Plan"
    cluster: "Cluster"


def load_plan(path: str, *, cluster: str | None = None, model: str | None = None) -> LoadedPlan:
    """The plan of a file; its model is captured, and a cluster or model that is given replaces its own."""
    from raddle.plans import plan_file
    from raddle.runtime.job import takes_batch

    data = plan_file.read(path)
    target_cluster = _cluster_for(path, data, cluster)
    name = model or data["model"]
    if not name:
        raise InputError(f"'{path}' names no model: add --model file.py:function.")
    batch = -(-data["batch"] // data["microbatches"]) if takes_batch(name) else None
    graph = capture_model(name, batch, data["dtype"])
    return LoadedPlan(graph, plan_file.from_dict(data, graph), target_cluster)


class LoadedPlans(NamedTuple):
    """Plans of one model, its graph at their batch, and a cluster to simulate them on."""

    graph: "Graph"
    plans: "list[Plan]"
    cluster: "Cluster"


def load_plans(
    paths: Sequence[str], *, cluster: str | None = None, model: str | None = None
) -> LoadedPlans:
    """The plans of files; the first one's model and cluster are those of all."""
    from raddle.plans import plan_file
    from raddle.plans.pipelining import micro_batch_graph

    micro_batch, first, target_cluster = load_plan(paths[0], cluster=cluster, model=model)
    graph = micro_batch.for_batch(first.batch) if first.batch else micro_batch
    others = [plan_file.read(path) for path in paths[1:]]
    plans = [first, *(plan_file.from_dict(data, micro_batch_graph(graph, data)) for data in others)]
    return LoadedPlans(graph, plans, target_cluster)


def _cluster_for(path: str, data: dict[str, Any], wanted: str | None) -> "Cluster":
    from raddle import clusters

    if wanted is not None:
        return clusters.cluster(wanted)
    if data["cluster"] is None:
        raise InputError(f"'{path}' names no cluster: add --cluster p100:1x4, say.")
    return clusters.Cluster.from_dict(data["cluster"], f"the cluster in '{path}'")
