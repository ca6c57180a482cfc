"""Unit tests of the fast path: the store, slots and undo, the tape, cluster arrays, tilings, slices."""

from __future__ import annotations

import numpy as np
from small_models import make_plan, mlp

from raddle.clusters import cluster
from raddle.graph.box import Box
from raddle.graph.gradients import has_backward
from raddle.plans.plan import Plan
from raddle.plans.sync import read_sync
from raddle.program.bundle import Bundle
from raddle.program.parameter_region import ParameterRegion
from raddle.program.program import Message
from raddle.simulation.fast.arrays import (
    BUNDLED_COUNT,
    COMPUTE,
    EVENT,
    GATHER,
    MESSAGES,
    NEEDS_SYNC,
    PULL_COUNT,
    PUSH_COUNT,
    PUSH_FIRST,
)
from raddle.simulation.fast.cluster_arrays import ClusterArrays
from raddle.simulation.fast.graph_index import index_graph
from raddle.simulation.fast.parameter_rows import ParameterRows
from raddle.simulation.fast.plan_rows import PlanRows, Undo
from raddle.simulation.fast.store import NOTHING, RowArray, RowStore
from raddle.simulation.fast.tape import urgencies
from raddle.simulation.fast.tilings import Tilings


def test_rows_stay_where_they_are_while_an_array_grows() -> None:
    rows = RowArray(2)
    slots = [rows.add(np.full((700, 2), n)) for n in range(4)]
    assert rows.add(np.zeros((0, 2))) == NOTHING
    for n, (first, count) in enumerate(slots):
        assert (rows.data[first : first + count] == n).all()
    assert rows.nbytes == 4 * 700 * 2 * 8


def test_what_is_in_the_cache_is_not_built_again() -> None:
    store, calls = RowStore(), list[int]()

    def build() -> int:
        calls.append(1)
        return 7

    assert [store.cached("key", build) for _ in range(3)] == [7, 7, 7]
    assert calls == [1]


def test_slots_add_loads_and_are_restored() -> None:
    index, store = index_graph(mlp(), Plan({}, 1)), RowStore()
    plan_rows = PlanRows(index, devices=2, links=1)
    computed = store.computes.add(np.array([[0, 5], [1, 7]]))
    sent = store.messages.add(np.array([[0, 1, 11, 2, -1, 0, 0, 4]]))
    synced = store.sync_units.add(
        np.array([[*sent, *computed, *sent, -1, -1, -1, 0, 1, 1, *NOTHING]])
    )
    undo = Undo()
    undo.save(plan_rows.load)
    plan_rows.set_slot(undo, store, plan_rows.slots.forward, 0, computed, store.computes)
    assert plan_rows.load.tolist() == [5, 7, 0]
    plan_rows.set_slot(undo, store, plan_rows.slots.merge, 0, computed, store.computes, times=2)
    assert plan_rows.load.tolist() == [15, 21, 0]
    plan_rows.set_slot(undo, store, plan_rows.slots.sync_units, 0, synced, store.sync_units)
    assert plan_rows.load.tolist() == [20, 28, 22]
    assert plan_rows.slots.table[0].tolist() == list(computed)  # a slot is a view of the table
    undo.restore()
    assert not plan_rows.load.any()
    assert not plan_rows.slots.table.any()
    assert not plan_rows.slots.sync_units.any()


def test_the_tape_has_what_any_plan_may_have() -> None:
    index = index_graph(mlp(), Plan({}, 1))
    tape, ops = index.tape, index.graph.ops
    merged = sum(bool(op.space.combine) for op in ops)
    backward = [op for op in ops if has_backward(op, index.active)]
    again = sum(bool(op.space.combine) for op in backward)
    assert (tape.kind == COMPUTE).sum() == len(ops) + merged + len(backward) + again
    assert (tape.kind == EVENT).sum() == len(index.trained) + 2
    assert (tape.kind == MESSAGES).sum() >= sum(len(op.outputs) for op in ops)
    assert not index.gathers
    assert not (tape.kind == GATHER).any()


def test_sharded_parameters_are_gathered_for_both_directions() -> None:
    index = index_graph(mlp(), Plan({}, 1, sync="sharded:parameters"))
    names = [name for gather in index.gathers for name in gather]
    assert sorted(names) == sorted([*index.trained, *index.trained])
    assert (index.tape.kind == GATHER).sum() == len(index.gathers)
    assert index.block_of.keys() == set(index.trained)


def test_what_is_used_first_is_the_most_urgent() -> None:
    index = index_graph(mlp(), Plan({}, 1, sync="p3"))
    urgency = urgencies(index.graph, index.parameter_number, index.trained, read_sync("p3"))
    order = sorted(index.trained, key=lambda name: urgency[index.parameter_number[name]])
    used = dict.fromkeys(n for op in index.graph.ops for n in op.inputs if n in index.trained)
    assert order == list(used)
    assert not urgencies(
        index.graph, index.parameter_number, index.trained, read_sync("allreduce")
    ).any()


def test_messages_are_listed_in_the_order_of_a_program() -> None:
    arrays = ClusterArrays(cluster("p100:1x4"))
    sent = [(Message(0, 3, ()), 10), (Message(0, 1, ()), 20), (Message(2, 3, ()), 30)]
    rows = arrays.ordered_message_rows(sent)
    assert rows[:, :2].tolist() == [[0, 1], [2, 3], [0, 3]]
    assert (rows[:, 2] > 0).all()
    assert arrays.ordered_message_rows([]).shape == (0, 8)


def test_operators_of_one_space_that_are_tiled_alike_share_a_number() -> None:
    graph = mlp()
    tiles = make_plan(graph, dict.fromkeys((op.name for op in graph.ops), "@0"), 2).tiles
    tilings, op = Tilings("global", training=True), graph.ops[0]
    assert tilings.numbered(op, tiles[op.name]) is tilings.numbered(op, tiles[op.name])
    assert not tilings.is_partial(op, tilings.numbered(op, tiles[op.name]))


def test_slices_are_rows_of_their_own() -> None:
    graph = mlp()
    plan = make_plan(graph, dict.fromkeys((op.name for op in graph.ops), "@0"), 2, sync="ps")
    parameter_rows, store = (
        ParameterRows(graph, ClusterArrays(cluster("local:2")), plan),
        RowStore(),
    )
    value = graph.parameters[0]
    box = Box.full(value.shape)
    number = {p.name: at for at, p in enumerate(graph.parameters)}
    regions = ParameterRegion(box, (0, 1), 0), ParameterRegion(box, (1,), 1)
    names = value.name, graph.parameters[1].name
    bundles = Bundle(names, (regions[0], regions[0])), Bundle(names[:1], regions[1:])
    slot = parameter_rows.bundle_rows(store, value, bundles, number)
    rows = store.sync_units.data[slot[0] : slot[0] + slot[1]]
    assert rows[:, NEEDS_SYNC].tolist() == [1, 0]
    assert rows[:, PUSH_COUNT].tolist() == rows[:, PULL_COUNT].tolist() == [1, 0]
    assert rows[:, BUNDLED_COUNT].tolist() == [2, 1]
    assert store.members.data[: store.members.used].flatten().tolist() == [0, 1, 0]
    one = parameter_rows.bundle_rows(store, value, (Bundle(names[:1], regions[:1]),), number)
    sent = store.messages.data[store.sync_units.data[[slot[0], one[0]], PUSH_FIRST], 2]
    assert sent[0] > sent[1]  # one message, with two slices
