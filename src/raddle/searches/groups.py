"""Finds groups: operators that a search splits together.

Most members of a group read the result of another member element by element:

    conv - moments - batch norm - relu        one group; the convolution is its anchor (its main operator);
                                              moments are mean and variance
    flatten - dropout - linear                one group; the linear layer is its anchor
    the gates and the cell of an LSTM step    one group

A configuration (configurations.py) says into how many parts the anchor's letters are split. A letter is the
name of a dimension, such as n (samples), c (channels), h, w, k (summed). The tiles of the other members
follow from it, so that most of what a member reads is on its own device. Batch-independent operators
(grids.py) are in no group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from raddle.graph.graph import Graph, Op
from raddle.graph.space import Access
from raddle.searches.grids import batch_independent

_STEP = re.compile(r"\.l\d+r?\.t\d+(?=\.)")  # layer and time step of a recurrent network

# How a member gets its tiles (see Member). The words are also in the output of `raddle explain`.
BY_LETTERS, AFTER, BEFORE = "own", "after", "before"


class Member(NamedTuple):
    """An operator of a group, and how it gets its tiles (`how`).

    BY_LETTERS: each of its dimensions is split as the group's letter of that name.
    AFTER: it is split as the member `ref` that it reads. Its operand number `operand` is the output number
        `output` of `ref`.
    BEFORE: it is split as the member `ref`, which reads it, needs. Its output number `output` is the
        operand number `operand` of `ref`.
    """

    op: Op
    how: str = BY_LETTERS
    ref: str = ""  # name of the other member; "" if BY_LETTERS
    operand: int = 0  # number of the operand through which one of the two reads the other
    output: int = 0  # number of the output that is read


@dataclass(frozen=True, eq=False)
class Group:
    """Operators that share a configuration."""

    members: tuple[Member, ...]  # the anchor comes first, and each other member after its `ref`
    letters: tuple[str, ...]  # letters that can be split, samples (n) first
    sizes: tuple[int, ...]  # by letter, the smallest size of its dimension in a BY_LETTERS member
    # Summed letters: their parts are partial sums.
    reduced: frozenset[str] = field(default_factory=frozenset)
    # The results of configurations.member_tilings: (degrees, shares) -> tilings.
    tilings_cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The name of the anchor."""
        return self.members[0].op.name

    @cached_property
    def ops(self) -> frozenset[str]:
        """The names of all members."""
        return frozenset(m.op.name for m in self.members)


def find_groups(graph: Graph) -> tuple[Group, ...]:
    """Returns the groups of a graph, in the order of their first operators.

    First every operator joins the group of an operator that it reads, if it can. Then groups of cheap
    operators, such as views, join the only group that reads them. During this search a group is identified
    by its root: the name of its first operator or, for a time step of a recurrent network, the part of the
    name that all its operators share.
    """
    members = _join_producers(graph)
    _join_readers(graph, members)
    by_group: dict[str, list[Member]] = {}
    for op in graph.ops:
        if op.name in members:
            root, member = members[op.name]
            by_group.setdefault(root, []).append(member)
    return tuple(_new_group(graph, root, group_members) for root, group_members in by_group.items())


Memberships = dict[
    str, tuple[str, Member]
]  # name of an operator -> (root of its group, its Member)


def _join_producers(graph: Graph) -> Memberships:
    """Returns each operator's group: the group that makes a value which it reads element by element.

    An operator without such a value starts a new group. Of several such values, the value with the most
    dimensions decides; of equal ones, the value that is made last.
    """
    independent = batch_independent(graph)
    # value -> (operator that produces the value, number of the output)
    producer = {o: (op, k) for op in graph.ops for k, o in enumerate(op.outputs)}
    order = {op.name: i for i, op in enumerate(graph.ops)}
    members: Memberships = {}
    # name of a composite -> root of the group of its first operator
    root_of_composite: dict[str, str] = {}
    for op in graph.ops:
        if op.name in independent:
            continue
        step = _STEP.search(op.name)
        if step and op.composite_kind:  # a time step of a recurrent layer is one group
            members[op.name] = (op.name[: step.end()], Member(op))
            continue
        # (number of dimensions, position of the producer in the graph, member that would be added)
        best: tuple[int, int, Member] | None = None
        for operand, name in enumerate(op.inputs):
            if name in producer and producer[name][0].name in members and not _is_heavy(op):
                ref, output = producer[name]
                access = op.space.operands[operand]
                if _is_elementwise(op, access):
                    rank = (len(access.indices), order[ref.name])
                    if best is None or rank > best[:2]:
                        best = (*rank, Member(op, AFTER, ref.name, operand, output))
        root = members[best[2].ref][0] if best else op.name
        composite_root = root_of_composite.setdefault(op.layer, root) if op.composite_kind else root
        if composite_root != root and _has_same_dims(op, graph, members, composite_root):
            # Operators of one composite, such as a loss, share a group.
            members[op.name] = (composite_root, Member(op))
        else:
            members[op.name] = (root, best[2] if best else Member(op))
    return members


def _has_same_dims(op: Op, graph: Graph, members: Memberships, root: str) -> bool:
    """Returns whether the group `root` has every dimension of an operator, by name and size."""
    sizes = {
        dim.name: dim.size
        for group_op in graph.ops
        if group_op.name in members and members[group_op.name][0] == root
        for dim in group_op.space.dims
    }
    return all(sizes.get(dim.name) == dim.size for dim in op.space.dims)


def _is_heavy(op: Op) -> bool:
    """Returns whether an operator always starts a group: a matrix product, a convolution, an opaque one."""
    return op.space.is_product or op.opaque


def _is_elementwise(op: Op, access: Access) -> bool:
    """Returns whether each element of the result needs only the operand's element at the same position.

    A dimension of size 1 of the operand may be broadcast.

    index.plain_dim: the operator's dimension that indexes the operand directly, as n and k in x[n k].
    index.extent: the size of the operand's dimension. index.terms: the letters in the index.
    """
    return all(
        (index.plain_dim is not None and index.extent == op.space.dims[index.plain_dim].size)
        or (not index.terms and index.extent == 1)
        for index in access.indices
    )


def _join_readers(graph: Graph, members: Memberships) -> None:
    """Joins each group of cheap operators (views and the like) to the only group that reads it."""
    # value -> its readers, each as (operator, number of the operand)
    readers: dict[str, list[tuple[Op, int]]] = {}
    for op in graph.ops:
        for operand, name in enumerate(op.inputs):
            readers.setdefault(name, []).append((op, operand))
    groups: dict[str, list[Op]] = {}  # root -> operators of the group
    for op in graph.ops:
        if op.name in members:
            groups.setdefault(members[op.name][0], []).append(op)
    for root in reversed(list(groups)):
        group_ops = groups[root]
        if not all(_is_light(graph, op) for op in group_ops):
            continue
        reader_roots = {
            members[reader.name][0]
            for op in group_ops
            for o in op.outputs
            for reader, _ in readers.get(o, ())
            if reader.name in members
        } - {root}
        if len(reader_roots) != 1:
            continue
        target = reader_roots.pop()
        for op in reversed(group_ops):
            first_read = next(
                (
                    (r, operand, k)
                    for k, o in enumerate(op.outputs)
                    for r, operand in readers.get(o, ())
                    if r.name in members and members[r.name][0] == target
                ),
                None,
            )
            if first_read is None:
                break  # the group `target` does not read this operator: it remains in its group
            reader, operand, output = first_read
            members[op.name] = (target, Member(op, BEFORE, reader.name, operand, output))
        else:  # the whole group has joined
            groups[target] = group_ops + groups[target]


def _is_light(graph: Graph, op: Op) -> bool:
    """Returns whether an operator is cheap, such as a view, and neither sums nor reads a parameter."""
    reads_parameter = any(graph.values[i].role == "parameter" for i in op.inputs)
    return op.traits.is_cheap and not op.opaque and not op.space.combine and not reads_parameter


def _new_group(graph: Graph, root: str, members: list[Member]) -> Group:
    """Returns a group of the members, with the letters that can be split."""
    ordered = _in_dependency_order(members)
    by_letters = [m.op for m in ordered if m.how == BY_LETTERS]
    sizes: dict[str, int] = {}
    reduced = set()
    for op in by_letters:
        for dim, kind in zip(op.space.dims, graph.dim_kinds(op), strict=True):
            if kind in "SAPR":  # sample, attribute, parameter or reduction: it can be split
                sizes[dim.name] = min(dim.size, sizes.get(dim.name, dim.size))
                if kind == "R":
                    reduced.add(dim.name)
    letters = sorted(sizes, key=lambda letter: letter != "n")  # n first, the others in their order
    return Group(
        tuple(ordered), tuple(letters), tuple(sizes[x] for x in letters), frozenset(reduced)
    )


def _in_dependency_order(members: Iterable[Member]) -> list[Member]:
    """Returns the members in order: the anchor first, every other member after its `ref`."""
    pending = list(members)
    names = {m.op.name for m in pending}
    done: dict[str, Member] = {}
    first = next((m for m in pending if m.how == BY_LETTERS and _is_heavy(m.op)), None)
    first = first or next(m for m in pending if m.how == BY_LETTERS)
    done[first.op.name] = first
    while len(done) < len(names):
        for m in pending:
            if m.op.name not in done and (m.how == BY_LETTERS or m.ref in done):
                done[m.op.name] = m
    return list(done.values())


def group_indices(groups: Iterable[Group]) -> Mapping[str, int]:
    """Returns the index of the group of each operator that is in a group."""
    return {name: g for g, group in enumerate(groups) for name in group.ops}
