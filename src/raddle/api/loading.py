"""Loads models, profiles and plan files by name, for all sub-commands.

The functions import torch when they are called, so that `raddle --help` is fast.
"""

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

MAX_SAMPLES = 2**31  # the largest batch


def capture_model(name: str, batch: int | None, dtype: str = "float32") -> "Graph":
    """Return the graph of a model of the zoo or of file.py:function.

    batch: the number of samples in the global batch; None: the model's default. dtype: the name of a type
    of torch.
    """
    import torch

    from raddle import zoo
    from raddle.graph.capture import capture

    if batch is not None and batch > MAX_SAMPLES:
        raise InputError(f"a batch of {batch} is too large: ask for at most {MAX_SAMPLES} samples.")
    workload = zoo.load(name, batch=batch, dtype=getattr(torch, dtype))
    return capture(workload.model, workload.batch, workload.loss, name=workload.name)


def load_optional_profile(path: str | None) -> "Profile | None":
    """Return the profile of a file, or None if no file is named."""
    from raddle.costs.profile import load_profile

    return None if path is None else load_profile(path)


class LoadedPlan(NamedTuple):
    """A plan, the graph of its model (at one micro-batch), and a cluster to simulate it on."""

    graph: "Graph"
    plan: "Plan"
    cluster: "Cluster"


def load_plan(path: str, *, cluster: str | None = None, model: str | None = None) -> LoadedPlan:
    """Return a plan file's plan, the graph of its model, and a cluster.

    cluster, model: used instead of those that the file names; None: those of the file.
    """
    from raddle.plans import plan_file
    from raddle.runtime.job import takes_batch

    data = plan_file.read(path)
    target_cluster = _cluster_for(path, data, cluster)
    name = model or data["model"]
    if not name:
        raise InputError(f"'{path}' names no model: add --model file.py:function.")
    # The samples of the largest micro-batch; None: a user's function with a fixed batch.
    batch = -(-data["batch"] // data["microbatches"]) if takes_batch(name) else None
    graph = capture_model(name, batch, data["dtype"])
    return LoadedPlan(graph, plan_file.from_dict(data, graph), target_cluster)


class LoadedPlans(NamedTuple):
    """Plans of one model, its graph at the first plan's whole batch, and a cluster to simulate them on."""

    graph: "Graph"
    plans: "list[Plan]"
    cluster: "Cluster"


def load_plans(
    paths: Sequence[str], *, cluster: str | None = None, model: str | None = None
) -> LoadedPlans:
    """Return the plans of several files. The model and the cluster of the first file are used for all."""
    from raddle.plans import plan_file
    from raddle.plans.pipelining import micro_batch_graph

    # micro_batch: the graph for the samples of one micro-batch; first: the first plan.
    micro_batch, first, target_cluster = load_plan(paths[0], cluster=cluster, model=model)
    graph = micro_batch.for_batch(first.batch) if first.batch else micro_batch
    others = [plan_file.read(path) for path in paths[1:]]
    plans = [first, *(plan_file.from_dict(data, micro_batch_graph(graph, data)) for data in others)]
    return LoadedPlans(graph, plans, target_cluster)


def _cluster_for(path: str, data: dict[str, Any], wanted: str | None) -> "Cluster":
    """Return the `wanted` cluster or, if that is None, the cluster of the plan file at `path`."""
    from raddle import clusters

    if wanted is not None:
        return clusters.cluster(wanted)
    if data["cluster"] is None:
        raise InputError(f"'{path}' names no cluster: add --cluster, for example p100:1x4.")
    return clusters.Cluster.from_dict(data["cluster"], f"the cluster in '{path}'")
