"""Operators, one file a family: the line of notation, how a box is executed, and the ATen calls it
stands for."""

from raddle.graph.kind import KINDS, Kind, kernel, merge, work
from raddle.graph.ops import (  # noqa: F401  (importing a family declares its operators)
    attention,
    contract,
    conv,
    fused,
    gather,
    loss,
    norm,
    opaque,
    pointwise,
    pool,
    random,
    recurrent,
    reduce,
    resample,
    reshape,
    shape,
)

__all__ = ["KINDS", "Kind", "kernel", "merge", "work"]
