"""Decides which attention of a plan drops weights with PyTorch's own masks, and which with exact masks.

Native masks come from torch's random generator. They are the same on all copies of a tile only if each
device computes just one tile of the operator, and if no tile has a part of the features: tiles with other
features of the same queries need the same mask. Where a plan asks for more, the masks are exact.
"""

from __future__ import annotations

from raddle.graph.graph import Op
from raddle.graph.ops.attention import has_attention_dropout, with_exact_dropout
from raddle.plans.plan import Plan
from raddle.plans.tiling import Tiling


def has_native_dropout(plan: Plan, op: Op, tiling: Tiling) -> bool:
    """Returns whether an operator with this tiling is attention that draws from torch's generator."""
    if plan.dropout != "native" or not has_attention_dropout(op):
        return False
    features = op.space.outputs[0][-1]  # the dimension of the features of the values
    has_whole_features = all(
        box.hi[features] - box.lo[features] == op.space.dims[features].size for box in tiling.boxes
    )
    return has_whole_features and len(tiling.tiles) == len(set(tiling.devices))


def with_planned_dropout(plan: Plan, op: Op, tiling: Tiling) -> Op:
    """Returns the operator as the plan runs it: `op`, or the same operator with exact masks."""
    return op if has_native_dropout(plan, op, tiling) else with_exact_dropout(op)
