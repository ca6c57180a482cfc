"""Programs: the instructions that a plan is lowered to, in one global order.

`Run` computes tiles, `Merge` combines partial results, `Move` sends messages, `Reduce` all-reduces
gradients, `Update` applies the optimizer. `active_values` returns the values whose gradient is needed.
"""

from __future__ import annotations

from raddle.graph.gradients import active_values
from raddle.program.lower import lower
from raddle.program.program import Merge, Move, Program, Reduce, Run, Update

__all__ = ["Merge", "Move", "Program", "Reduce", "Run", "Update", "active_values", "lower"]
