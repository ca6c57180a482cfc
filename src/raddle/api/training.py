"""Training by a plan, or without one: then a plan is made, and timed next to data parallelism.

`parallelize` is public as `raddle.parallelize`. The runtime (runtime/trainer.py) trains by the plan.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from raddle.api.candidates import choose_plan
from raddle.clusters import Cluster, cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.graph.supervised import Loss
from raddle.plans import plan_file
from raddle.plans.optimizers import OPTIMIZERS, optimizer_info
from raddle.plans.plan import Plan
from raddle.runtime import trainer as runtime
from raddle.runtime.capture_batch import capture_batch
from raddle.runtime.optimizer_size import state_elements
from raddle.runtime.tile_optimizer import MakeOptimizer
from raddle.searches.planning import plan_for
from raddle.transport.base import Transport
from raddle.transport.join import join

__all__ = ["parallelize"]

BUDGET = 30.0  # seconds of the search


def parallelize(
    model: nn.Module,
    optimizer: MakeOptimizer,
    *,
    loss: Loss | None = None,
    example: Any = None,
    plan: Any = None,
    graph: Graph | None = None,
    budget: float = BUDGET,
    tune: bool = True,
    **settings: Any,
) -> runtime.Trainer:
    """Returns a trainer for this rank of a torchrun job, or for plain `python`.

    optimizer: called with (name, parameter) pairs, which torch.optim takes as they are; or a torch.optim
        optimizer of the model's parameters, whose class, options, groups and state are taken over.
    loss: loss(model, batch), as for `raddle.capture`; None: the model returns its loss.
    example: a batch like those that `step` will take.
    plan: a plan, the path of its file, the content of its file as a dict, or a result that has a plan.
        None: without torchrun, training runs on this device alone. In a torchrun job, rank 0 searches a
        plan for `budget` seconds. Then this plan, data parallelism as DDP's and, sharded, as FSDP2's take
        steps on copies of the model, and the fastest one is used and stored in the cache.
    tune: False: use the plan that was searched, without taking steps.
    settings: device, backend, seed, accumulate, clip_norm, precision, compile, dropout, check_finite,
        timeout, transport and graph; `raddle.runtime.trainer.parallelize` explains them.

    >>> import raddle
    >>> model, batch = nn.Linear(4, 2), (torch.randn(8, 4), torch.randn(8, 2))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loss = raddle.supervised(nn.functional.mse_loss)
    >>> with raddle.parallelize(model, optimizer, loss=loss, example=batch) as trainer:
    ...     float(trainer.step(batch)) > float(trainer.step(batch))
    True
    """
    if plan is not None:
        chosen = _data_of(plan)
        _check_state_size(chosen, optimizer, model)
        return runtime.parallelize(
            model, optimizer, plan=chosen, loss=loss, example=example, graph=graph, **settings
        )
    if graph is None and example is None:
        raise InputError("give example=, a batch as the data loader gives it, or a plan.")
    place = runtime.place_of(settings.get("device"))
    transport = settings.pop("transport", None) or join(
        place, settings.get("backend"), settings.get("timeout", 300.0)
    )
    try:
        graph = capture_batch(model, example, loss) if graph is None else graph
        name = _optimizer_name(optimizer, model)
        if transport.size == 1:
            chosen = _alone(graph, name)
        else:
            build = _builder(model, optimizer, transport, loss, graph, settings)
            target = _cluster(place, transport)
            batch = example if tune else None
            chosen = choose_plan(graph, target, transport, place, build, name, batch, budget)
    except BaseException as error:
        transport.fail(str(error))
        raise
    return runtime.parallelize(
        model, optimizer, plan=chosen, loss=loss, graph=graph, transport=transport, **settings
    )


def _data_of(plan: Any) -> Plan | Mapping[str, Any]:
    """Returns a plan or the content of a plan file."""
    plan = getattr(plan, "plan", plan)  # a result of planning has a plan
    if isinstance(plan, (Plan, Mapping)):
        return plan
    if isinstance(plan, (str, pathlib.Path)):
        return plan_file.read(plan)
    raise InputError(
        f"the plan is a {type(plan).__name__}: give a plan, the path of its file, or leave it out."
    )


def _check_state_size(
    plan: Plan | Mapping[str, Any], optimizer: MakeOptimizer, model: nn.Module
) -> None:
    """Raises InputError if the plan was made for an optimizer with more or less state."""
    planned = plan.optimizer if isinstance(plan, Plan) else str(plan["optimizer"])
    expected, actual = optimizer_info(planned).state_elements, state_elements(optimizer, model)
    if actual is None or actual == expected:
        return
    size = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    name = next((n for n, info in OPTIMIZERS.items() if info.state_elements == actual), "adam")
    raise InputError(
        f"the plan was made for '{planned}', whose state has {expected * size:,} bytes, and this "
        f"optimizer's has {actual * size:,} bytes: plan again with optimizer='{name}'."
    )


def _optimizer_name(optimizer: MakeOptimizer, model: nn.Module) -> str:
    """Returns the optimizer of a plan that has as much state as this one."""
    elements = state_elements(optimizer, model)
    names = (name for name, info in OPTIMIZERS.items() if info.state_elements == elements)
    return next(names, "adam")


def _alone(graph: Graph, optimizer: str) -> Plan:
    """Returns the plan for one device, and prints how to use more."""
    count = max(torch.cuda.device_count() if torch.cuda.is_available() else os.cpu_count() or 1, 2)
    print(
        "raddle: training on this device alone; for more: torchrun --nproc-per-node "
        f"{count} {os.path.basename(sys.argv[0]) or 'train.py'}",
        file=sys.stderr,
    )
    return plan_for(graph, cluster("local:1"), "data", optimizer=optimizer)


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
