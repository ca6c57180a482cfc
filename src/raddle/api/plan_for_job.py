"""The plan for the ranks of a job that names none: a search, timed next to data parallelism."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from raddle.api.candidates import PlanChoices, choose_plan
from raddle.clusters import Cluster, cluster
from raddle.graph.graph import Graph
from raddle.graph.supervised import Loss
from raddle.plans.optimizers import OPTIMIZERS
from raddle.plans.plan import Plan
from raddle.plans.precision import DEFAULT
from raddle.runtime import trainer as runtime
from raddle.runtime.optimizer_size import state_elements
from raddle.runtime.tile_optimizer import MakeOptimizer
from raddle.searches.planning import plan_for
from raddle.transport.base import Transport


def plan_for_job(
    graph: Graph, model: nn.Module, optimizer: MakeOptimizer, transport: Transport, place: torch.device,
    *, loss: Loss | None, example: Any, budget: float, settings: Mapping[str, Any],
) -> Plan:  # fmt: skip
    """Returns the plan that all ranks train by.

    example: a batch, on which candidates are timed; None: they are not. budget: seconds of the search.
    settings: of the trainer, see runtime/trainer.py.
    """
    choices: PlanChoices = {
        "optimizer": _optimizer_name(optimizer, model),
        "precision": settings.get("precision") or DEFAULT,
    }
    if transport.size == 1:
        return _alone(graph, choices)
    build = _builder(model, optimizer, transport, loss, graph, settings)
    target = _cluster(place, transport)
    return choose_plan(
        graph, target, transport, place, build, choices, settings, example=example, budget=budget
    )


def _optimizer_name(optimizer: MakeOptimizer, model: nn.Module) -> str:
    """Returns the optimizer of a plan that has as much state as this one."""
    elements = state_elements(optimizer, model)
    names = (name for name, info in OPTIMIZERS.items() if info.state_elements == elements)
    return next(names, "adam")


def _alone(graph: Graph, choices: PlanChoices) -> Plan:
    """Returns the plan for one device, and prints how to use more."""
    count = max(torch.cuda.device_count() if torch.cuda.is_available() else os.cpu_count() or 1, 2)
    print(
        "raddle: training on this device alone; for more: torchrun --nproc-per-node "
        f"{count} {os.path.basename(sys.argv[0]) or 'train.py'}",
        file=sys.stderr,
    )
    return plan_for(graph, cluster("local:1"), "data", **choices)


def _cluster(place: torch.device, transport: Transport) -> Cluster:
    """Returns a description of the ranks: a preset for their GPUs if there is one, else local ranks."""
    ranks = transport.size
    kind = torch.cuda.get_device_name(place).lower() if place.type == "cuda" else ""
    preset = next((name for name in ("h200", "h100", "a100", "p100") if name in kind), None)
    if preset is None:
        return cluster(f"local:{ranks}")
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    nodes = max(ranks // per_node, 1)
    return cluster(f"{preset}:{nodes}x{ranks // nodes}")


def _builder(
    model: nn.Module, optimizer: MakeOptimizer, transport: Transport, loss: Loss | None,
    graph: Graph, settings: Mapping[str, Any],
) -> Callable[[Plan], runtime.Trainer]:  # fmt: skip
    """Returns a function that makes a trainer by a plan, with copies of the model's tensors."""
    place = runtime.place_of(settings.get("device"))
    of_trainer = {k: v for k, v in settings.items() if k not in ("device", "backend", "timeout")}

    def build(plan: Plan) -> runtime.Trainer:
        return runtime.make_trainer(
            model, plan, optimizer, transport, place, loss=loss, graph=graph, **of_trainer
        )

    return build
