"""Makes the float64 *twin* of a training job: the same plan and operators, but all computed in float64.

`raddle verify` compares twins, so that rounding does not hide errors. The module is captured twice: in its
own precision, which gives the operators that the plan is for, and in float64 with all casts neutralised
(precision.py). The second capture gives the numbers that the code uses in float64: epsilons, limits and
constants may depend on the type. Apart from casts, both captures must have the same operators in the same
order. If not, an InputError names the first difference.

A *job* (runtime/job.py) is all that a rank needs to train: the workload (model, loss and batch), the plan
and the program.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from raddle.errors import InputError
from raddle.graph.arguments import map_leaves
from raddle.graph.graph import FusedCall, Graph, Op, Value
from raddle.graph.recapture import CAPTURE_LOCK
from raddle.plans.pipelining import plan_for_running
from raddle.plans.plan import describe_inputs
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.runtime.job import Job, capture_workload, load_workload
from raddle.verification.precision import (
    DoublePrecisionMode,
    double_dtype,
    module_to_double,
    to_double,
)
from raddle.zoo.loading import default_dtype
from raddle.zoo.move import loss_module
from raddle.zoo.workload import Workload


@dataclass(frozen=True)
class Twin:
    """A job in float64."""

    job: Job
    casts: Mapping[str, int]  # dtype -> number of the model's casts to it, which were neutralised


def load_twin(path: str, *, model: str = "", bn: str = "", seed: int = 0) -> Twin:
    """Read a plan file and return the float64 twin of its job.

    model, bn, seed: see runtime.job.load_job; an empty `model` or `bn` is that of the plan.
    """
    workload, graph, plan = load_workload(path, model=model, seed=seed)
    double_workload = _double_workload(workload)
    with default_dtype(torch.float64), DoublePrecisionMode():
        double = capture_workload(double_workload, plan.microbatches)
    twin = twin_graph(graph, double)
    plan = replace(
        plan,
        bn=bn or plan.bn,
        dropout="exact",  # the plain module can have only masks that do not depend on the plan
        dtype="float64",
        fingerprint=twin.fingerprint(),
        inputs=describe_inputs(twin),
    )
    # plan_for_running sets plan.steps, the steps of the program: 1 or, where steps overlap, many.
    program = lower(twin, plan_for_running(plan))
    check(program)
    return Twin(Job(double_workload, plan, program), _count_casts(graph))


def _double_workload(workload: Workload) -> Workload:
    """Return a copy of the workload in float64.

    The original stays as it is: its graph may be captured again for micro-batches of another size.
    """
    model, loss = copy.deepcopy((workload.model, workload.loss))
    module_to_double(model)
    if (module := loss_module(loss)) is not None:
        module_to_double(module)
    batch = map_leaves(lambda _, leaf: to_double(leaf), workload.batch)
    return replace(workload, model=model, batch=batch, loss=loss)


def twin_graph(graph: Graph, double: Graph) -> Graph:
    """Return `graph` in float64, with the attributes and constants of `double`, its float64 capture."""
    matching_ops, matching_values = _match_operators(graph, double)

    def recapture(batch: int) -> Graph:
        """Return the twin of the graph for another batch size."""
        with CAPTURE_LOCK:  # the default dtype is global to the process
            original = graph.for_batch(batch)
            with default_dtype(torch.float64), DoublePrecisionMode():
                converted = double.for_batch(batch)
        return twin_graph(original, converted)

    return replace(
        graph,
        values={n: replace(v, dtype=double_dtype(v.dtype)) for n, v in graph.values.items()},
        ops=tuple(_double_op(op, matching_ops.get(op.name)) for op in graph.ops),
        fused_calls=_double_fused(graph, double),
        constants={
            name: to_double(double.constants.get(matching_values.get(name, ""), tensor))
            for name, tensor in graph.constants.items()
        },
        recapture=recapture,
    )


def _double_op(op: Op, double: Op | None) -> Op:
    """Return an operator in float64; `double`: the matching one of the float64 capture, None for a cast."""
    attrs = op.attrs if double is None or double.kind != op.kind else double.attrs
    return replace(op, attrs=to_double(attrs), dtypes=tuple(map(double_dtype, op.dtypes)))


def _double_fused(graph: Graph, double: Graph) -> tuple[FusedCall, ...]:
    """Return the fused calls (native calls of composites, such as batch norm) in float64.

    Returns () if the two captures have different ones.
    """
    if [f.kind for f in graph.fused_calls] != [f.kind for f in double.fused_calls]:
        return ()
    pairs = zip(graph.fused_calls, double.fused_calls, strict=True)
    return tuple(replace(call, attrs=to_double(double_call.attrs)) for call, double_call in pairs)


# -- match the operators of both captures ------------------------------------------------------------


def _match_operators(graph: Graph, double: Graph) -> tuple[dict[str, Op], dict[str, str]]:
    """Match the operators of both captures; raises InputError if they differ.

    Returns two dictionaries: name of an operator of `graph` that is no cast -> the matching operator of
    `double`; name of a value of `graph` -> name of the matching value of `double`. Here and below, `left`
    is an operator of `graph`, and `right` an operator of `double`.
    """
    original, converted = (_without_casts(g) for g in (graph, double))
    matching_values = {
        name: name for name, v in graph.values.items() if v.role not in ("op", "constant")
    }
    matching_ops: dict[str, Op] = {}
    for left, right in zip(original.ops, converted.ops, strict=False):
        if not (
            _same_operator(graph, double, left, right)
            and _reads_same(original, converted, left, right, matching_values)
        ):
            raise _mismatch(graph, left, right)
        matching_ops[left.name] = right
        matching_values.update(zip(left.outputs, right.outputs, strict=True))
    if len(original.ops) != len(converted.ops):
        shorter = min(len(original.ops), len(converted.ops))
        raise _mismatch(graph, *(next(iter(g.ops[shorter:]), None) for g in (original, converted)))
    return matching_ops, matching_values


@dataclass(frozen=True)
class _CastFree:
    """A graph without its casts."""

    ops: Sequence[Op]  # the operators that are no casts
    source: Callable[[str], str]  # maps the result of casts to the value before them


def _without_casts(graph: Graph) -> _CastFree:
    """Return the graph without its casts."""
    # result of a cast -> its operand
    before = {op.outputs[0]: op.inputs[0] for op in graph.ops if _is_cast(graph, op)}

    def source(name: str) -> str:
        while name in before:
            name = before[name]
        return name

    return _CastFree([op for op in graph.ops if op.outputs[0] not in before], source)


def _is_cast(graph: Graph, op: Op) -> bool:
    """Return whether an operator only copies, or casts between floating-point or complex types."""
    if op.kind != "pointwise" or op.label not in ("_to_copy", "clone") or len(op.inputs) != 1:
        return False
    return double_dtype(graph.values[op.inputs[0]].dtype) == double_dtype(op.dtypes[0])


def _same_operator(graph: Graph, double: Graph, left: Op, right: Op) -> bool:
    """Return whether two operators compute the same, where `right` is in float64.

    They may differ in kind if `left` is opaque, that is, a call that raddle cannot split.
    """
    return (
        left.label == right.label
        and (left.opaque if left.kind != right.kind else _same_attributes(left.attrs, right.attrs))
        and [_shape_and_dtype(graph.values[o]) for o in left.outputs]
        == [_shape_and_dtype(double.values[o]) for o in right.outputs]
    )


def _same_attributes(left: Any, right: Any) -> bool:
    """Return whether attributes are equal; floats may differ: some are limits or epsilons of the dtype."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(
            _same_attributes(left[k], right[k]) for k in left
        )
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(_same_attributes, left, right))
    floats = isinstance(left, float) and isinstance(right, float)
    return floats or bool(to_double(left) == to_double(right))


def _shape_and_dtype(value: Value) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape of a value, and its dtype in double precision."""
    return value.shape, double_dtype(value.dtype)


def _reads_same(
    original: _CastFree, converted: _CastFree, left: Op, right: Op, matching_values: dict[str, str]
) -> bool:
    """Return whether two operators read matching values."""
    if len(left.inputs) != len(right.inputs):
        return False
    for a, b in zip(
        map(original.source, left.inputs), map(converted.source, right.inputs), strict=True
    ):
        # Constants have no match yet: the first operator that reads one makes the match.
        if matching_values.setdefault(a, b) != b:
            return False
    return True


def _mismatch(graph: Graph, left: Op | None, right: Op | None) -> InputError:
    """Return the error for the first operators that differ.

    left, right: None if that capture has no more operators.
    """
    computed, double_computed = (
        f"'{op.name}' ({op.label})" if op else "nothing more" for op in (left, right)
    )
    return InputError(
        f"'{graph.name}' computes {computed} where it computes {double_computed} in float64: "
        "its code depends on the precision, so a run in float64 says nothing about the plan; "
        "verify a model without that."
    )


def _count_casts(graph: Graph) -> dict[str, int]:
    """Count the casts of the graph by their type, such as {"bfloat16": 2}."""

    def cast_types() -> Iterator[str]:
        for op in graph.ops:
            if _is_cast(graph, op) and op.label == "_to_copy":
                yield str(op.dtypes[0]).removeprefix("torch.")

    return dict(Counter(cast_types()))


def explain_casts(casts: Mapping[str, int], tolerance: float) -> str:
    """Return a sentence that says in which precision the trainings were compared."""
    counted = ", ".join(f"{n} to {name}" for name, n in sorted(casts.items()))
    inside = (
        f"casts inside the model are neutralised ({counted})" if casts else "the graph has no casts"
    )
    return f"compared in float64: {inside}, so the tolerance of {tolerance:g} is one of float64."
