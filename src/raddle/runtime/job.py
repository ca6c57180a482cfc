"""Loads a job from a plan file: the plan with its model, an example batch and the lowered program.

Every rank of `raddle run` loads it (session.py). Before the ranks start, `raddle run` loads it on the meta
device to check the plan.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from raddle import zoo
from raddle.errors import InputError
from raddle.graph.arguments import map_samples
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans import plan_file
from raddle.plans.optimizers import OPTIMIZERS
from raddle.plans.pipelining import plan_for_running
from raddle.plans.plan import Plan, describe_inputs
from raddle.plans.validation import validate
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.program import Program
from raddle.runtime.tile_optimizer import Factory
from raddle.zoo.move import move_workload
from raddle.zoo.user_file import find_function, is_file_spec
from raddle.zoo.workload import Workload


@dataclass(frozen=True)
class Job:
    """All that a rank needs to train."""

    workload: Workload  # model, loss, and a batch of the global size
    plan: Plan
    program: Program

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @property
    def batch(self) -> Any:
        return self.workload.batch


def load_job(
    path: str,
    *,
    model: str = "",
    dtype: str = "",
    bn: str = "",
    dropout: str = "",
    precision: str = "",
    optimizer: str = "",
    seed: int = 0,
    device: str = "cpu",
) -> Job:
    """Returns the job of a plan file: loads and captures the model, lowers and checks the program.

    model: for plans that name none; dtype, bn, dropout, precision, optimizer: replace those of the plan
    (bn: batch norm statistics, dropout: of attention). Weights and batch depend only on the seed, so every
    rank that loads a job has the same ones. On the torch device "meta" nothing is allocated; this is enough
    to check whether a plan can run.
    """
    workload, graph, plan = load_workload(path, model=model, dtype=dtype, seed=seed, device=device)
    plan = replace(
        plan, bn=bn or plan.bn, dropout=dropout or plan.dropout,
        precision=precision or plan.precision, optimizer=optimizer or plan.optimizer,
    )  # fmt: skip
    # plan_for_running sets plan.steps, the steps of the program: 1 or, where steps overlap, many.
    program = lower(graph, plan_for_running(plan))
    check(program)
    return Job(workload, plan, program)


def load_workload(
    path: str, *, model: str = "", dtype: str = "", seed: int = 0, device: str = "cpu"
) -> tuple[Workload, Graph, Plan]:
    """Returns the workload, its graph and the plan for the graph: `load_job` without the lowering."""
    content = plan_file.read(path)
    name = model or content["model"]
    if not name:
        raise InputError(f"'{path}' names no model: add --model file.py:function.")
    plan_dtype, run_dtype = content["dtype"], dtype or content["dtype"]
    workload = _load_at_batch(name, content, run_dtype, device, seed)
    graph = capture_workload(workload, content["microbatches"])
    if run_dtype == plan_dtype:
        return workload, graph, plan_file.from_dict(content, graph)
    return workload, graph, _convert_plan(name, content, run_dtype, graph)


def takes_batch(name: str) -> bool:
    """Returns whether a model can be loaded with any batch size; a user's function may fix the size."""
    return (
        not is_file_spec(name)
        or "batch" in inspect.signature(find_function(name).function).parameters
    )


def optimizer_for(name: str, rate: float | None = None) -> Factory:
    """Returns a function that makes the optimizer of this name. rate: learning rate; None: its default."""
    if name not in OPTIMIZERS:
        raise InputError(f"the plan's optimizer is '{name}': choose {', '.join(OPTIMIZERS)}.")
    preset = OPTIMIZERS[name]
    return partial(preset.make, lr=preset.default_lr if rate is None else rate)


def _load_at_batch(
    name: str, content: dict[str, Any], dtype: str, device: str, seed: int
) -> Workload:
    """Returns a model with an example batch of the plan's global size. content: of the plan file."""
    torch_dtype, count = getattr(torch, dtype), content["microbatches"]
    if takes_batch(name):
        batch = content["batch"] or None
        workload = zoo.load(name, batch=batch, device=device, dtype=torch_dtype, seed=seed)
    else:  # the function gives one micro-batch; it is repeated for the others
        workload = zoo.load(name, device=device, dtype=torch_dtype, seed=seed)
        repeated = map_samples(lambda t: t.repeat(count, *[1] * (t.ndim - 1)), workload.batch)
        workload = replace(workload, batch=repeated)
    if dtype != content["dtype"]:
        # Also converts tensors that a user's function makes in a fixed dtype.
        workload = move_workload(workload, device, torch_dtype)
    return workload


def capture_workload(workload: Workload, microbatches: int) -> Graph:
    """Returns the graph of one micro-batch, of the largest size if sizes differ."""
    batch = map_samples(lambda t: t[: -(-len(t) // microbatches)], workload.batch)  # rounded up
    return capture(workload.model, batch, workload.loss, name=workload.name)


def _convert_plan(name: str, content: dict[str, Any], dtype: str, graph: Graph) -> Plan:
    """Returns the plan for the same model in another precision; `graph` is captured in that precision."""
    plan_graph = capture_workload(
        _load_at_batch(name, content, content["dtype"], "meta", 0), content["microbatches"]
    )
    # Operators and the dimensions of their iteration spaces, in both precisions.
    spaces = [{op.name: (op.label, op.space.dims) for op in g.ops} for g in (plan_graph, graph)]
    if spaces[0] != spaces[1]:
        raise InputError(
            f"'{name}' has other operators in {dtype} than in {content['dtype']}, which the plan is for: "
            "it casts, or asks for the type of its inputs; "
            f"run it in {content['dtype']}, or plan in {dtype}."
        )
    plan = replace(
        plan_file.from_dict(content, plan_graph),
        dtype=dtype,
        fingerprint=graph.fingerprint(),  # identifies the graph that a plan is for
        inputs=describe_inputs(graph),
    )
    validate(plan, graph)
    return plan
