"""Explains where a plan's time goes, and what another split of an operator would change."""

from __future__ import annotations

from raddle.searches.explanation.explain_op import explain_op, find_ops
from raddle.searches.explanation.explain_plan import explain_plan

__all__ = ["explain_op", "explain_plan", "find_ops"]
