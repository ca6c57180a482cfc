"""Describes for the HTML page of a report the costs of other splits of the layers, within a time limit.

An alternative is another split of a group: operators that are split together. The anchor is the operator of
a group that decides the split (searches/groups.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from raddle.costs.profile import Profile
from raddle.plans.plan import Plan
from raddle.reports.explanation import comparison_sentence, describe_changes
from raddle.searches.explanation.alternatives import Alternatives
from raddle.searches.explanation.explain_op import plan_space_of
from raddle.searches.explanation.plan_timers import make_timer
from raddle.searches.operator_times import whole_operator_seconds
from raddle.searches.ranking import MAX_EVALUATED_DEVICES
from raddle.simulation.timeline import Timeline

# Takes {"step": the present activity, "done": 2, "of": 5}: 2 of 5 units of work are finished.
OnProgress = Callable[[Mapping[str, Any]], None]


def describe_alternatives(
    plan: Plan, timeline: Timeline, profile: Profile | None, seconds: float, on_progress: OnProgress
) -> list[dict[str, Any]]:
    """Return, for each group of operators that are split together, its members and other splits.

    Groups with the most work come first; groups not reached within `seconds` are left out. timeline: the
    simulation of the plan. profile: measured times of operators, or None.
    """
    graph, cluster = timeline.program.graph, timeline.cluster
    # The fast simulation is used up to this many devices; the full one is too slow for many alternatives.
    if plan.devices > MAX_EVALUATED_DEVICES or seconds <= 0:
        return []
    # The groups of the graph, and the splits that each may have (searches/plan_space.py).
    space = plan_space_of(graph, plan, cluster, profile)
    # The page refers to operators by their numbers.
    number = {op.name: i for i, op in enumerate(graph.ops)}
    # Gives the step time of the plan with another split of a group (explanation/plan_timers.py).
    timer = make_timer(space, plan, timeline)
    started = perf_counter()  # after make_timer, which may JIT compile
    # A function (operator, device) -> seconds of the unsplit operator, forward and backward.
    operator_seconds = whole_operator_seconds(graph)

    def group_seconds(g: int) -> float:
        """Return the seconds of a group's operators on one device; g: the number of the group."""
        return sum(
            operator_seconds(member.op, cluster.devices[0]) for member in space.groups[g].members
        )

    def out_of_time() -> bool:
        return perf_counter() - started > seconds

    order = sorted(range(len(space.groups)), key=group_seconds, reverse=True)
    described = []
    for done, g in enumerate(order):
        if out_of_time():
            break
        on_progress(
            {"step": f"alternatives of {space.groups[g].name}", "done": done, "of": len(order)}
        )
        result = Alternatives(space, timer, g, without_details=True, stop=out_of_time).explain()
        base = result["base"]
        described.append(
            {
                "anchor": number[space.groups[g].name],
                "members": [number[m.op.name] for m in space.groups[g].members],
                "sentence": comparison_sentence(result),
                # Why the full simulation computed the times; None: the fast simulation did.
                "simulated": result["simulated"],
                # The step time of the plan as it is, with which the alternatives are compared: of a single
                # step on its own or, if steps overlap, of an average step.
                "alone_ms": base["step_ms"],
                "alternatives": [
                    {
                        "tiles": row["tiles"],
                        "difference_ms": row["difference_ms"],
                        "memory_bytes": row["memory_bytes"],
                        "why": describe_changes(base, row),
                    }
                    for row in result["alternatives"]
                ],
            }
        )
    return described
