"""Loads models and plan files by name, for scripts and for all sub-commands.

The functions import torch when they are called, so that `raddle --help` is fast.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raddle.errors import InputError, quote

if TYPE_CHECKING:
    from torch import nn

    from raddle.api.plan_result import PlanResult
    from raddle.clusters import Cluster
    from raddle.costs.profile import Profile
    from raddle.graph.graph import Graph
    from raddle.graph.supervised import Loss

__all__ = [
    "capture_model",
    "load_plan",
    "load_plans",
    "why_unbound",
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
    from raddle.graph.recapture import CAPTURE_LOCK

    if batch is not None and batch > MAX_SAMPLES:
        raise InputError(f"a batch of {batch} is too large: ask for at most {MAX_SAMPLES} samples.")
    with CAPTURE_LOCK:  # while a user's function runs, the default dtype of the process is set
        workload = zoo.load(name, batch=batch, dtype=getattr(torch, dtype))
        return capture(workload.model, workload.batch, workload.loss, name=workload.name)


def load_plan(
    path: "str | os.PathLike[str]",
    *,
    model: "nn.Module | str | None" = None,
    example: Any = None,
    loss: "Loss | None" = None,
    cluster: "Cluster | str | os.PathLike[str] | None" = None,
    profile: "Profile | str | None" = None,
) -> "PlanResult":
    """Returns the plan of a file with the graph of its model, and a cluster to simulate it on.

    model: a module, with `example` (a batch of the plan's size) and `loss` as in `raddle.plan`; or the name
        of a model, used instead of the name in the file. None: the name in the file. A file whose model
        has no name gives a result with the file's predictions alone.
    cluster: used instead of the cluster in the file.
    profile: measured times of operators, or the path of their file.

    >>> import os, raddle, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "plan.json")
    >>> raddle.plan("mlp-tiny", 8, cluster="local:2", method="data").save(path)
    >>> raddle.load_plan(path).plan.method
    'data'
    """
    from raddle.api.costs import load_optional_profile
    from raddle.api.modules import planned_module
    from raddle.api.plan_result import PlanResult, SimulatedPlan, UnboundPlan
    from raddle.plans import plan_file
    from raddle.plans.pipelining import micro_batch_graph

    file = os.fspath(path)
    content = plan_file.read(file)
    where = _cluster_for(file, content, cluster)
    measured = load_optional_profile(profile)
    if model is None or isinstance(model, str):
        if example is not None or loss is not None:
            raise InputError("an example and a loss belong to a module: give model= as well.")
        name = model or content["model"]
        if model is None and (problem := why_unbound(name)):
            return PlanResult(UnboundPlan(file, content, where, problem))
        graph, workload = _capture_for(name, content), None
    else:
        whole, workload = planned_module(model, example, loss)
        graph = micro_batch_graph(whole, content)
    plan = plan_file.from_dict(content, graph)
    return PlanResult(SimulatedPlan(plan, graph, where, measured, workload=workload))


def load_plans(
    paths: Sequence[str],
    *,
    cluster: str | None = None,
    model: str | None = None,
    profile: "Profile | None" = None,
) -> "list[PlanResult]":
    """Return the results of several files. The model and the cluster of the first file are used for all."""
    from raddle.api.plan_result import PlanResult, SimulatedPlan
    from raddle.plans import plan_file
    from raddle.plans.pipelining import micro_batch_graph

    first = load_plan(paths[0], cluster=cluster, model=model, profile=profile)
    whole = first.graph.for_batch(first.plan.batch) if first.plan.batch else first.graph
    results = [first]
    for path in paths[1:]:
        content = plan_file.read(path)
        graph = micro_batch_graph(whole, content)
        plan = plan_file.from_dict(content, graph)
        results.append(PlanResult(SimulatedPlan(plan, graph, first.cluster, profile)))
    return results


def _capture_for(name: str, content: dict[str, Any]) -> "Graph":
    """Return the graph of a model, at the size of the plan's largest micro-batch."""
    from raddle.runtime.job import takes_batch

    # None: a user's function with a fixed batch.
    batch = -(-content["batch"] // content["microbatches"]) if takes_batch(name) else None
    return capture_model(name, batch, content["dtype"])


def why_unbound(name: str) -> str:
    """Return why the model that a plan file names cannot be loaded; "" if it can, or a file is missing."""
    from raddle import zoo
    from raddle.zoo.loading import similar_names
    from raddle.zoo.user_file import is_file_spec

    if not name:
        return "it names no model"
    if is_file_spec(name) or name in zoo.names():
        return ""
    similar = similar_names(name)
    advice = f" (did you mean {' or '.join(similar)}?)" if similar else ""
    return f"its model, {quote(name)}, is not in the zoo{advice}"


def _cluster_for(
    path: str, content: dict[str, Any], wanted: "Cluster | str | os.PathLike[str] | None"
) -> "Cluster":
    """Return the `wanted` cluster or, if that is None, the cluster of the plan file at `path`."""
    from raddle import clusters

    if wanted is not None:
        return clusters.cluster(wanted)
    if content["cluster"] is None:
        raise InputError(f"'{path}' names no cluster: add --cluster, for example p100:1x4.")
    return clusters.Cluster.from_dict(content["cluster"], f"the cluster in '{path}'")
