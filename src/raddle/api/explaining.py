"""Explains where a plan's time goes, and what another split of an operator would change.

`explain_plan` compares a plan with data parallelism; `explain_op` lists other splits of the operators that
`find_ops` finds by name. `explain_simulated` returns an `Explanation`, which prints as text.
"""

from __future__ import annotations

from typing import Any

from raddle.costs.profile import Profile
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.reports.explanation import show_op, show_plan
from raddle.reports.terminal import text_of
from raddle.searches.explanation.explain_op import explain_op, find_ops
from raddle.searches.explanation.explain_plan import explain_plan, explain_timeline
from raddle.simulation.timeline import Timeline

__all__ = ["Explanation", "explain_op", "explain_plan", "explain_simulated", "find_ops"]


class Explanation(dict[str, Any]):
    """An explanation of a plan or of an operator: data, which print as sentences and tables."""

    def __repr__(self) -> str:
        return text_of(show_op if "op" in self else show_plan, self)


def explain_simulated(
    graph: Graph, plan: Plan, timeline: Timeline, op: str | None, profile: Profile | None = None
) -> Explanation:
    """Explain a plan that was simulated already or, if `op` is given, one of its operators."""
    cluster = timeline.cluster
    if op is not None:
        return Explanation(explain_op(graph, plan, cluster, op, profile))
    if plan.devices == len(cluster.devices):
        return Explanation(explain_timeline(plan, timeline, profile))
    return Explanation(explain_plan(graph, plan, cluster, profile))
