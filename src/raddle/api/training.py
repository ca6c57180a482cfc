"""Training by a plan, or without one: then one is made for the ranks of this job (plan_for_job.py).

`parallelize` is public as `raddle.parallelize`. The runtime (runtime/trainer.py) trains by the plan.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from torch import nn

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
        # Searches need packages that training by a plan does not need: numpy, numba and others.
        from raddle.api.plan_for_job import plan_for_job

        graph = capture_batch(model, example, loss) if graph is None else graph
        batch = example if tune else None
        chosen = plan_for_job(
            graph, model, optimizer, transport, place, loss=loss, example=batch, budget=budget,
            settings=settings,
        )  # fmt: skip
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
