"""Explains one operator of a plan: its tiles, its group, and the cost of other splits of this group.

A group (searches/groups.py) is a set of operators that are split together, such as a convolution with its
batch norm and ReLU. The first one is the *anchor*. A *letter* names a dimension (n: samples, c: channels).
"""

# g: number of a group in space.groups; d: a dimension of an operator

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from reprlib import repr as short
from typing import Any

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.graph import Graph, Op
from raddle.plans.notation import write_tiling
from raddle.plans.pipelining import without_pipeline
from raddle.plans.plan import Plan
from raddle.plans.tiling import Grid, Tiling
from raddle.searches.configurations import tiles
from raddle.searches.explanation.alternatives import Alternatives
from raddle.searches.explanation.explain_plan import devices_of_plan, heading
from raddle.searches.explanation.plan_timers import make_timer
from raddle.searches.groups import BY_LETTERS, Group, Member, group_indices
from raddle.searches.plan_space import PlanSpace
from raddle.searches.predict import simulate_steps
from raddle.searches.ranking import MAX_EVALUATED_DEVICES
from raddle.searches.settings import Settings

# By letter of Graph.dim_kinds, the name of the kind: the first three are FlexFlow's.
DIMENSION_KINDS = {"S": "sample", "A": "attribute", "P": "parameter", "R": "reduction"}


def explain_op(
    graph: Graph, plan: Plan, cluster: Cluster, name: str, profile: Profile | None = None
) -> dict[str, Any]:
    """Return how an operator is split, its group, and what other splits of the group would cost.

    name: an operator, a module, or the beginning of a name.
    Keys of the result: `step_ms` is the average of several steps. `base` (the plan) and `alternatives` are
    the times of a single step or, if steps overlap, of the average one; they are None if nothing was timed,
    and `notes` says why. `simulated` is None if the evaluator (simulation/fast) computed these times; if
    not, it names the feature that the evaluator does not support, and all times come from the simulator.
    `others`: the other groups with operators that `name` stands for. `overlapping`: whether steps overlap,
    as in an asynchronous pipeline. `excluded`: the alternatives that are impossible, do not fit in memory
    or were not timed.
    """
    op, *other_ops = find_ops(graph, name)
    cluster = devices_of_plan(plan, cluster)
    space = plan_space_of(graph, plan, cluster, profile)
    group_number = group_indices(space.groups)  # by operator name
    g = group_number.get(op.name)
    explanation = {
        **heading(plan, cluster),
        "op": op.name,
        "kind": op.label,
        "tiles": write_tiling(op, plan.tiles[op.name]),
        "others": _other_groups(
            space.groups, [group_number[o.name] for o in other_ops if o.name in group_number], g
        ),
    }
    no_times = {
        "step_ms": None,
        "simulated": None,
        "overlapping": False,
        "base": None,
        "alternatives": None,
        "timed": 0,
        "faster": 0,
        "excluded": None,
    }
    if g is None:
        readers = [
            # readers: by value, pairs (reader, number of the operand)
            r.name
            for o in op.outputs
            for r, _ in space.batch_independent.readers.get(o, ())
        ]
        note = "it depends on no sample, so it is computed where it is read and has no split of its own"
        return {**explanation, "group": None, "read_by": readers, **no_times, "notes": [note]}
    explanation["group"] = _group(graph, space, g, plan)
    if plan.devices > MAX_EVALUATED_DEVICES:
        note = (
            f"alternatives are timed on up to {MAX_EVALUATED_DEVICES} devices, "
            f"the plan has {plan.devices}"
        )
        return {**explanation, **no_times, "notes": [note]}
    timeline = simulate_steps(graph, plan, cluster, profile)
    plan_timer = make_timer(space, plan, timeline)
    return {
        **explanation,
        "step_ms": 1e3 * timeline.step_seconds,
        **Alternatives(space, plan_timer, g).explain(),
        "notes": _notes(plan, explanation["group"], plan_timer.why_simulated),
    }


def plan_space_of(
    graph: Graph, plan: Plan, cluster: Cluster, profile: Profile | None = None
) -> PlanSpace:
    """Return the space of plans that a search could choose from with the settings of this plan."""
    settings = Settings(
        bn=without_pipeline(plan).bn,  # "microbatch" becomes "global"
        sync=plan.sync,
        precision=plan.precision,
        optimizer=plan.optimizer,
        profile=profile,
        reduction=True,  # splits of summed dimensions too
    )
    return PlanSpace(graph, cluster, settings)


def find_ops(graph: Graph, name: str) -> list[Op]:
    """Return the operator with this name.

    If there is none, return all operators of the module with this name; if there is no such module, all
    operators whose names start with it. Raises InputError if there are none.
    """
    exact = [op for op in graph.ops if op.name == name]
    in_module = [op for op in graph.ops if name and op.name.startswith(f"{name}.")]
    ops = exact or in_module or [op for op in graph.ops if name and op.name.startswith(name)]
    if ops:
        return ops
    names = [op.name for op in graph.ops]
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        raise InputError(
            f"no operator {short(name)} in '{graph.name}': did you mean {' or '.join(close)}?"
        )
    raise InputError(
        f"no operator {short(name)} in '{graph.name}', which has {len(names)} operators, such as "
        f"{', '.join(names[:3])}: `raddle plan --text` lists them all."
    )


def _other_groups(groups: Sequence[Group], numbers: Iterable[int], g: int | None) -> list[str]:
    """Return the names of the groups with these numbers, each once, without group g."""
    return [groups[other].name for other in dict.fromkeys(numbers) if other != g]


def _notes(plan: Plan, group: Mapping[str, Any], simulated: str | None) -> list[str]:
    """Return sentences that help to understand the result.

    group: result of `_group`; simulated: the feature that the evaluator does not support, or None.
    """
    notes = []
    if group["configuration"] is None:
        notes.append("the tiles of the group are no configuration that a search could choose")
    others = [m["name"] for m in group["members"] if not m["follows"]]
    if others and group["configuration"] is not None:
        names = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if others[3:] else "")
        notes.append(f"the alternatives change the tiles of these operators too: {names}")
    if simulated:
        notes.append(f"all times are simulated: the evaluator does not time {simulated}")
    if plan.order:
        notes.append("each alternative sums its slices in the order that is best for them")
    return notes


def _group(graph: Graph, space: PlanSpace, g: int, plan: Plan) -> dict[str, Any]:
    """Return a description of a group: its anchor, configuration, dimensions and members.

    Keys of a member: `follows` says whether its tiles are those that the group's configuration gives; `how`
    says how it gets its tiles, and `ref` from which other member (searches/groups.py).
    """
    group, configuration = space.groups[g], space.configuration_of(g, plan.tiles)
    expected = tiles(group, configuration) if configuration else {}
    anchor = group.members[0].op
    return {
        "anchor": anchor.name,
        "notation": anchor.notation,
        "tiles": write_tiling(anchor, plan.tiles[anchor.name]),
        "configuration": configuration
        and dict(zip(group.letters, configuration.degrees, strict=True)),
        "letters": _letters(graph, group, plan.tiles),
        "members": [
            {
                "name": m.op.name,
                "kind": m.op.label,
                "how": "anchor" if m.op is anchor else m.how,
                "ref": m.ref,
                "tiles": write_tiling(m.op, plan.tiles[m.op.name]),
                "follows": plan.tiles[m.op.name] == expected.get(m.op.name),
            }
            for m in group.members
        ],
    }


def _letters(graph: Graph, group: Group, tiles: Mapping[str, Tiling]) -> list[dict[str, Any]]:
    """Return descriptions of the dimensions of the group, each letter once.

    They are those of the anchor and of the other members that get their tiles by letters; the remaining
    members take their tiles from a member that they follow.
    """
    sizes = dict(zip(group.letters, group.sizes, strict=True))
    rows: dict[str, dict[str, Any]] = {}
    for member in group.members:
        for d, (dim, kind) in enumerate(
            zip(member.op.space.dims, graph.dim_kinds(member.op), strict=True)
        ):
            # "-": the dimension cannot be split.
            is_new = dim.name not in rows or (rows[dim.name]["kind"] is None and kind != "-")
            if member.how == BY_LETTERS and is_new:
                rows[dim.name] = {
                    "letter": dim.name,
                    "size": sizes.get(dim.name, dim.size),
                    "kind": DIMENSION_KINDS.get(kind),
                    "of": member.op.name,
                    "parts": _parts(tiles[member.op.name], d),
                    "why_not": None if kind != "-" else _why_not_split(member, d),
                }
    return list(rows.values())


def _why_not_split(member: Member, d: int) -> str:
    """Return why dimension d cannot be split."""
    if member.op.opaque:
        return "the operator is opaque"
    return "it is taken whole" if member.op.space.dims[d].unsplittable else "it has extent 1"


def _parts(tiling: Tiling, d: int) -> int | None:
    """Return into how many parts dimension d is split; None if the tiles form no grid."""
    return len(tiling.cuts[d]) - 1 if isinstance(tiling, Grid) else None
