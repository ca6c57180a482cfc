"""Models, profiles and plans by name, for all verbs; torch is imported when it is needed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from raddle.errors import InputError

if TYPE_CHECKING:
    from raddle.clusters import Cluster
    from raddle.costs.profile import Profile
    from raddle.graph.graph import Graph
    from raddle.plans.plan import Plan

__all__ = ["Loaded", "LoadedPlans", "capture_model", "load_measured", "load_plan", "load_plans"]

MOST_SAMPLES = 2**31


def capture_model(name: str, batch: int | None, dtype: str = "float32") -> "Graph":
    """The graph of a model of the zoo or plan_file.py:function, at a global batch or at its own."""
    import torch

    from raddle import zoo
    from raddle.graph.capture import capture

    if batch is not None and batch > MOST_SAMPLES:
        raise InputError(
            f"a batch of {batch} is too large: ask for at most {MOST_SAMPLES} samples."
        )
    w = zoo.load(name, batch=batch, dtype=getattr(torch, dtype))
    return capture(w.model, w.inputs, targets=w.targets, loss=w.loss, name=w.name)


def load_measured(path: str | None) -> "Profile | None":
    """The profile of a file, where one is named."""
    from raddle.costs.profile import load_profile

    return None if path is None else load_profile(path)


class Loaded(NamedTuple):
    """A plan with the model that it is for, and a cluster to simulate it on."""

    graph: "Graph"
    plan: "Plan"
    cluster: "Cluster"


def load_plan(path: str, *, cluster: str | None = None, model: str | None = None) -> Loaded:
    """The plan of a file; its model is captured, and a cluster or model that is given replaces its own."""
    from raddle.plans import plan_file
    from raddle.runtime.job import takes_batch

    data = plan_file.read(path)
    on = _cluster_for(path, data, cluster)
    name = model or data["model"]
    if not name:
        raise InputError(f"'{path}' names no model: add --model plan_file.py:function.")
    batch = -(-data["batch"] // data["microbatches"]) if takes_batch(name) else None
    graph = capture_model(name, batch, data["dtype"])
    return Loaded(graph, plan_file.from_dict(data, graph), on)


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

    micro, first, on = load_plan(paths[0], cluster=cluster, model=model)
    graph = micro.for_batch(first.batch) if first.batch else micro
    others = [plan_file.read(path) for path in paths[1:]]
    plans = [first, *(plan_file.from_dict(data, micro_batch_graph(graph, data)) for data in others)]
    return LoadedPlans(graph, plans, on)


def _cluster_for(path: str, data: dict[str, Any], wanted: str | None) -> "Cluster":
    from raddle import clusters

    if wanted is not None:
        return clusters.cluster(wanted)
    if data["cluster"] is None:
        raise InputError(f"'{path}' names no cluster: add --cluster p100:1x4, say.")
    return clusters.Cluster.from_dict(data["cluster"], f"the cluster in '{path}'")
