"""Explains where a plan's time goes, and what another split of an operator would change.

`explain_plan` compares a plan with data parallelism; `explain_op` lists other splits of the operators that
`find_ops` finds by name.
"""

from __future__ import annotations

from raddle.searches.explanation.explain_op import explain_op, find_ops
from raddle.searches.explanation.explain_plan import explain_plan

__all__ = ["explain_op", "explain_plan", "find_ops"]
