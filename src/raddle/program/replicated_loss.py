"""Finds the operators of a replicated loss: every device computes the end of the forward.

A loss is a sum over samples, followed by a few small operators. With a replicated loss, each device with a
part of the sum receives all parts and merges them, and computes a copy of all operators that follow. So
each device has the gradient of the sum, and starts the backward of its own part without waiting for a
message.
"""

from __future__ import annotations

from collections.abc import Callable

from raddle.graph.gradients import gradient_contributors, trained_parameters
from raddle.graph.graph import Graph, Op
from raddle.plans.plan import Plan
from raddle.plans.tiling import Grid

# Bytes: a partial result up to this size is merged on every device that reads it.
SMALL_RESULT = 64 * 1024
# The most devices of a replicated loss. Each sends its part to all others: messages grow with the square.
MOST_REPLICAS = 8


def replicated_loss_ops(
    graph: Graph, plan: Plan, active: frozenset[str], is_partial: Callable[[Op], bool]
) -> frozenset[str]:
    """Returns the operators whose partial results are merged on every device, if the loss is replicated.

    active: the values that need a gradient. is_partial: whether an operator's tiles give partial results.
    """
    if graph.loss not in active:
        return frozenset()
    # By value, the operators that contribute to its gradient: those that use it.
    users = {
        name: {op.name for op in ops} for name, ops in gradient_contributors(graph, active).items()
    }
    last = next(op for op in graph.ops if graph.loss in op.outputs)
    devices = set(plan.tiles[last.name].devices)
    if len(devices) > MOST_REPLICAS:
        return frozenset()
    if is_partial(last):
        return frozenset([last.name])
    copied: set[str] = set()  # operators after the merges, of which every device has a copy
    merged: set[str] = set()  # operators whose partial results every device merges
    for op in reversed(graph.ops):
        readers = {r for o in op.outputs if o in active for r in users.get(o, ())}
        if op is not last and not readers & copied:
            continue
        small = all(graph.values[o].nbytes <= SMALL_RESULT for o in op.outputs)
        if not readers <= copied or not small:
            return frozenset()
        if is_partial(op) and set(plan.tiles[op.name].devices) <= devices:
            merged.add(op.name)
        elif _is_replicated(op, plan, devices) and not trained_parameters(graph, op, active):
            copied.add(op.name)
        else:
            return frozenset()
    return frozenset(merged)


def _is_replicated(op: Op, plan: Plan, devices: set[int]) -> bool:
    """Returns whether an operator is not split, and each of these devices has a copy of it."""
    tiling = plan.tiles[op.name]
    # Two cut points, 0 and the size: a dimension is not split.
    is_whole = isinstance(tiling, Grid) and all(len(cuts) == 2 for cuts in tiling.cuts)
    return is_whole and set(tiling.devices) == devices
