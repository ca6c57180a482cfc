"""Programs: the instructions that a plan is lowered to, in one global order."""

from __future__ import annotations

from raddle.graph.gradients import active_values
from raddle.program.lower import lower
from raddle.program.program import Merge, Move, Program, Reduce, Run, Update

__all__ = ["Merge", "Move", "Program", "Reduce", "Run", "Update", "active_values", "lower"]
