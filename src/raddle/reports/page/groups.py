"""What other splits of each layer would cost, for the page: as many layers as there is time for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from raddle.costs.profile import Profile
from raddle.plans.plan import Plan
from raddle.reports.explaining import standing, what_changes
from raddle.searches.explanation.alternatives import Alternatives
from raddle.searches.explanation.explain_op import plan_space_of
from raddle.searches.explanation.plan_timers import make_timer
from raddle.searches.operator_times import whole_operator_seconds
from raddle.searches.ranking import MAX_EVALUATED_DEVICES
from raddle.simulation.timeline import Timeline

Heard = Callable[[Mapping[str, Any]], None]


def describe_alternatives(
    plan: Plan, timeline: Timeline, profile: Profile | None, seconds: float, heard: Heard
) -> list[dict[str, Any]]:
    """By group of operators that are split together: its members, and what else could be done.

    The groups of most work come first; what is not reached within `seconds` has no alternatives.
    """
    graph, cluster = timeline.program.graph, timeline.cluster
    if plan.devices > MAX_EVALUATED_DEVICES or seconds <= 0:
        return []
    space = plan_space_of(graph, plan, cluster, profile)
    number = {op.name: i for i, op in enumerate(graph.ops)}
    own = make_timer(space, plan, timeline)
    begun = perf_counter()  # whatever was compiled for the first time by then
    work = whole_operator_seconds(graph)

    def size(g: int) -> float:
        return sum(work(member.op, cluster.devices[0]) for member in space.groups[g].members)

    def late() -> bool:
        return perf_counter() - begun > seconds

    order = sorted(range(len(space.groups)), key=size, reverse=True)
    found = []
    for done, g in enumerate(order):
        if late():
            break
        heard({"step": f"alternatives of {space.groups[g].name}", "done": done, "of": len(order)})
        result = Alternatives(space, own, g, without_details=True, stop=late).explain()
        base = result["base"]
        found.append(
            {
                "anchor": number[space.groups[g].name],
                "members": [number[m.op.name] for m in space.groups[g].members],
                "sentence": standing(result),
                "simulated": result["simulated"],
                "alone_ms": base["step_ms"],
                "alternatives": [
                    {
                        "tiles": row["tiles"],
                        "difference_ms": row["difference_ms"],
                        "memory_bytes": row["memory_bytes"],
                        "why": what_changes(base, row),
                    }
                    for row in result["alternatives"]
                ],
            }
        )
    return found
