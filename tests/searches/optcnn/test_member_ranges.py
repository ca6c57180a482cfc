"""Ranges of a group's members, and the times of transfers between their layouts."""

from __future__ import annotations

import numpy as np
from small_models import small

from raddle.clusters import cluster
from raddle.graph.gradients import active_values
from raddle.searches.groups import find_groups
from raddle.searches.optcnn.communication import CommunicationTimes
from raddle.searches.optcnn.layouts import LayoutBuilder
from raddle.searches.optcnn.member_ranges import MemberRanges

GRAPH, ON = small("mlp-tiny")[1], cluster("p100:1x2")
BUILDER = LayoutBuilder(np.arange(2), 2)


def test_ranges_of_one_letter_are_one_object() -> None:
    ranges = MemberRanges()
    (group, *_) = find_groups(GRAPH)
    lattice = BUILDER.lattice(group)
    (member, *_) = group.members
    dims = ranges.by_letters(group, member, lattice)
    assert all(a is b for a, b in zip(dims, ranges.by_letters(group, member, lattice), strict=True))
    assert [r.end for r in dims] == [dim.size for dim in member.op.space.dims]
    for access in member.op.space.operands:
        for index in access.indices:
            if index.plain_dim is not None and dims[index.plain_dim].end <= index.extent:
                assert ranges.operand_ranges(index, dims) is dims[index.plain_dim]


def test_a_value_that_is_read_where_it_was_made_costs_nothing() -> None:
    layouts = {
        m.op.name: layout
        for group in find_groups(GRAPH)
        for m, layout in zip(group.members, BUILDER.layouts(group), strict=True)
    }
    times = CommunicationTimes(GRAPH, active_values(GRAPH), ON, np.arange(2), layouts, {})
    producer, reader = GRAPH.op("layers.0"), GRAPH.op("relu")
    seconds = times.transfer_seconds(reader, 0, producer, 0, two_groups=False)
    assert (seconds == 0).all()
    pairs = times.transfer_seconds(reader, 0, producer, 0, two_groups=True)
    assert (np.diag(pairs) == 0).all()
    assert pairs.max() > 0
    assert times.transfer_seconds(reader, 0, producer, 0, two_groups=True) is pairs
