"""Tests of each part of `build_actions` on its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_models import make_plan, mlp

from raddle.graph.box import Box
from raddle.graph.capture import capture
from raddle.graph.ops import make_kernel
from raddle.graph.supervised import supervised
from raddle.program.lower import lower
from raddle.program.message_kind import MessageKind
from raddle.program.program import Key, Move, Program, Reduce, Run, Update
from raddle.runtime.actions import (
    Call,
    Forward,
    Receive,
    Send,
    StartGather,
    StartSliceAllReduce,
    SubmitGradients,
    UpdateParameters,
)
from raddle.runtime.build_actions import build_actions
from raddle.runtime.builders.buckets import BucketBuilder
from raddle.runtime.builders.buffers import BufferUpdateBuilder
from raddle.runtime.builders.calls import CallBuilder
from raddle.runtime.builders.messages import MessageBuilder
from raddle.runtime.builders.persistent import add_persistent_slots
from raddle.runtime.builders.slices import SliceBuilder
from raddle.runtime.builders.slot_lifetimes import mark_dead_slots, mark_releases
from raddle.runtime.builders.slot_table import SlotTable, read_hulls
from raddle.runtime.builders.versions import VersionBuilder, mark_stashed_versions
from raddle.runtime.delivery import delivery_of
from raddle.runtime.function_writer import GeneratedCode, Piece

CPU, KEY = torch.device("cpu"), Key()
FIRST = Box((0, 0), (1, 8))  # the first of two samples, with eight features
SPLIT = {"fc1": "n/2 @0,1", "relu": "n/2 @0,1"}  # fc2 and the sum are on device 0


def program(sync: str = "allreduce", tiles: dict[str, str] = SPLIT, **more: object) -> Program:
    return lower(mlp(), make_plan(mlp(), tiles, 2, sync=sync, **more))


def slot_table_of(program: Program, device: int) -> SlotTable:
    return SlotTable(program.graph, [read_hulls(v, device) for v in program.variants])


def test_a_slot_for_every_piece() -> None:
    slot_table = slot_table_of(program(), 0)
    computed_slot = slot_table.add_computed(KEY, "fc1", FIRST)
    received_slot = slot_table.add_received(KEY, "fc1", Box((1, 0), (2, 8)))
    assert slot_table.box_slots(KEY, "fc1") == [
        (FIRST, computed_slot),
        (Box((1, 0), (2, 8)), received_slot),
    ]
    assert (
        slot_table.box_slots(Key(micro_batch=1), "fc1") == []
    )  # other micro-batches have other slots
    assert slot_table.slot_of(KEY, Piece("fc1", FIRST)) == computed_slot
    (name,) = slot_table.graph.inputs
    source = slot_table.input_source(KEY, name)
    assert source.box == Box((0, 0), (1, 4))  # the sample that fc1 reads on device 0
    assert slot_table.input_source(KEY, name) is source
    assert slot_table.sources == [source]


def test_every_send_names_the_last_receive_of_its_move() -> None:
    """From rows to columns and back: each device sends to the other one, and receives from it."""
    lowered = program(tiles={"fc1": "n/2 @0,1", "relu": "c/2 @0,1"})
    for device, peer in ((0, 1), (1, 0)):
        sends = [a for a in build_actions(lowered, device, CPU).actions if isinstance(a, Send)]
        receives = {s.label: s.posted_before and s.posted_before.label for s in sends}
        assert receives[f"activation of fc1 to {peer}"] == f"activation of fc1 from {peer}"
        assert receives[f"gradient of fc1 to {peer}"] == f"gradient of fc1 from {peer}"
        assert None in receives.values()  # relu's result goes from device 1 to device 0 only


def test_parameters_are_kept_where_they_are_used() -> None:
    lowered = program()
    tables = [slot_table_of(lowered, device) for device in (0, 1)]
    updated = [
        add_persistent_slots(lowered, device, table).updated_slots
        for device, table in enumerate(tables)
    ]
    assert sorted(tables[0].persistent) == ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]
    assert sorted(tables[1].persistent) == ["fc1.bias", "fc1.weight"]
    assert [len(slots) for slots in updated] == [4, 2]


def test_zero3_parameters_keep_a_shard_and_gather_the_others() -> None:
    lowered = program("sharded:parameters")
    slot_table = slot_table_of(lowered, 1)
    persistent = add_persistent_slots(lowered, 1, slot_table)
    ((rows, slot),) = slot_table.shards["fc1.weight"]
    assert rows == Box((4, 0), (8, 4))
    assert any(w.shape == (8, 4) for w in persistent.gathered)
    assert not persistent.shard_views
    assert slot in persistent.updated_slots
    assert slot in [s.slot for s in slot_table.sources if s.role == "parameter"]


def test_zero2_parameters_stay_whole_and_a_view_is_updated() -> None:
    lowered = program("sharded")
    slot_table = slot_table_of(lowered, 1)
    persistent = add_persistent_slots(lowered, 1, slot_table)
    view = next(v for v in persistent.shard_views if v.shard.name == "fc1.weight")
    ((box, slot),) = slot_table.persistent["fc1.weight"]
    assert (view.parameter_slot, view.rows, view.shard.box) == (
        slot,
        (slice(4, 8), slice(0, 4)),
        Box((4, 0), (8, 4)),
    )
    assert box == Box((0, 0), (8, 4))
    assert view.shard.slot in persistent.updated_slots
    assert slot not in persistent.updated_slots


def test_a_segment_is_a_call_on_slots() -> None:
    lowered = program()
    slot_table = slot_table_of(lowered, 1)
    add_persistent_slots(lowered, 1, slot_table)
    calls = CallBuilder(lowered, 1, CPU, slot_table)
    call = calls.segment(0, KEY)
    assert call is calls.segment(0, KEY)
    weights = [
        slot for name in ("fc1.weight", "fc1.bias") for _, slot in slot_table.persistent[name]
    ]
    assert (sorted(call.weights), call.backward, call.recompute) == (weights, True, False)
    (feed,) = calls.feeds(call)
    assert call.nondifferentiable == [feed.source.slot]
    assert not calls.feeds(call)
    x, weight, bias = torch.ones(1, 4), torch.ones(8, 4), torch.zeros(8)
    (result,) = call.code.function(weight, bias, x)
    assert torch.equal(result, torch.full((1, 8), 4.0))


def test_a_segment_waits_at_its_first_instruction() -> None:
    lowered = program()
    calls = CallBuilder(lowered, 1, CPU, slot_table_of(lowered, 1), lowered.instructions)
    runs = [i for i in lowered.instructions if isinstance(i, Run) and 1 in i.devices]
    waits = [(run.op, run.phase, calls.dependencies_at_first(run)) for run in runs]
    assert [deps is not None for _, _, deps in waits] == [True, False, True, False]
    assert [(op, phase) for op, phase, _ in waits] == [
        ("fc1", "F"), ("relu", "F"), ("relu", "B"), ("fc1", "B"),
    ]  # fmt: skip


def test_messages_are_sent_posted_and_awaited_once() -> None:
    lowered = program()
    number, move = next(
        (n, i)
        for n, i in enumerate(lowered.instructions)
        if isinstance(i, Move) and i.kind == MessageKind.ACTIVATION
    )
    ends = {}
    for device in (0, 1):
        slot_table = slot_table_of(lowered, device)
        if device == 1:
            slot_table.add_computed(KEY, move.value, move.messages[0].boxes[0])
        messages = MessageBuilder(lowered, device, slot_table)
        (ends[device],) = messages.build_transfers(number, move, range(1))
        assert messages.not_awaited() == ([number] if device == 0 else [])
        assert len(messages.build_awaits(number)) == (device == 0)
        assert not messages.build_awaits(number)
    send, receive = ends[1], ends[0]
    assert isinstance(send, Send)
    assert isinstance(receive, Receive)
    assert (send.peer, receive.peer, send.tag) == (0, 1, receive.tag)
    assert [p.shape for p in send.parts] == [p.shape for p in receive.parts] == [(1, 8)]


@pytest.mark.parametrize("kind", MessageKind)
def test_every_kind_of_message_lands_somewhere(kind: MessageKind) -> None:
    slot_table = slot_table_of(program(), 0)
    box = Box((0, 0), (8, 4))
    slot_table.add_computed(KEY, "fc1.weight", box)  # slot 0, and slot 1 below
    slot_table.add_persistent("fc1.weight", "parameter", box)
    part = delivery_of(kind).destination(slot_table, KEY, "fc1.weight", Box((2, 0), (4, 4)))
    slots = {"activation": (2,), "partial": (2,), "push": (1,), "pull": (1,), "signal": ()}
    assert part.slots == slots.get(kind.value, (0,))
    within = () if kind.value not in ("push", "pull", "gradient", "partial gradient") else (2, 4)
    assert within == tuple(
        end
        for slot_index, _ in part.index_pairs
        for end in (slot_index[0].start, slot_index[0].stop)
    )


def test_a_bucket_for_each_group_and_type() -> None:
    lowered = program(bucket=10**6)
    slot_table = slot_table_of(lowered, 1)
    add_persistent_slots(lowered, 1, slot_table)
    sums = BucketBuilder(lowered, 1, slot_table)
    (reduce,) = (i for i in lowered.instructions if isinstance(i, Reduce))
    (action,) = sums.build(reduce, 7)
    assert (action.bucket, action.tag) == (0, 7)
    assert [(b.devices, b.elements) for b in sums.buckets] == [((0, 1), 8 * 4 + 8)]


def test_slices_are_submitted_once_and_summed_one_by_one() -> None:
    lowered = program("p3:collective,slice=8")
    slot_table = slot_table_of(lowered, 1)
    add_persistent_slots(lowered, 1, slot_table)
    slices = SliceBuilder(lowered, 1, slot_table)
    actions = [a for i in lowered.instructions if slices.handles(i) for a in slices.build(i)]
    # The weight and the bias of fc1
    assert sum(isinstance(a, SubmitGradients) for a in actions) == 2
    summed = [a.number for a in actions if isinstance(a, StartSliceAllReduce)]
    bundles_here = {n for n, b in enumerate(lowered.bundles) if 1 in b.devices}
    assert set(summed) == bundles_here
    assert sorted(slices.bundle_order) == list(range(len(lowered.bundles)))
    assert sorted(n for b in slices.all_bundles() for n in b) == list(
        range(len(slices.all_slices()))
    )


def test_shards_have_the_same_place_in_the_buffer_on_all_ranks() -> None:
    for sync in ("sharded", "sharded:parameters"):
        lowered = program(sync)
        blocks = [build_actions(lowered, d, torch.device("cpu")).blocks for d in range(2)]
        places = [
            [(b.devices, [(r.shape, r.shard_elements, r.offset) for r in b.regions]) for b in rank]
            for rank in blocks
        ]
        assert places[0] == places[1] != []
        assert all(b.shard_elements == sum(r.shard_elements for r in b.regions) for b in blocks[0])


def test_buffers_take_what_is_there() -> None:
    model = torch.nn.BatchNorm1d(4)
    graph = capture(model, (torch.zeros(6, 4),), supervised(lambda y: y.sum(), targets=0))
    lowered = lower(graph, make_plan(graph, {}, 1))
    slot_table = slot_table_of(lowered, 0)
    add_persistent_slots(lowered, 0, slot_table)
    buffers = BufferUpdateBuilder(lowered, 0, slot_table)
    value = graph.updates["running_mean"]
    assert not buffers.build([value], KEY)  # the device has no part of the value yet
    half = slot_table.add_computed(KEY, value, Box((0,), (2,)))
    ((_, slot),) = slot_table.persistent["running_mean"]
    (update,) = buffers.build([value], KEY)
    assert update.partial_updates == [(slot, [(Box((0,), (2,)), half)])]
    assert buffers.current_boxes == {"running_mean": [Box((0,), (2,))]}


def call(number: int, *, weights: list[int], results: list[int], differentiable: list[int]) -> Call:
    code = GeneratedCode(make_kernel, (), tuple(Piece("w", FIRST) for _ in weights), (), (), "")
    return Call(number, "", code, KEY, differentiable, weights, results=results)


def test_versions_are_the_programs() -> None:
    lowered = program()
    run = Run("fc1", "F", KEY, (0,), (), versions=(3, 3))
    versions = VersionBuilder(lowered, 0, [run, replace(run, devices=(1,), versions=(4, 4))])
    pieces = (Piece("fc1.bias", FIRST), Piece("fc1.weight", FIRST))
    fc1_call = Call(0, "", GeneratedCode(make_kernel, (), pieces, (), (), ""), KEY)
    assert versions.versions_for(
        fc1_call, [op for op in lowered.graph.ops if op.name == "fc1"]
    ) == (
        3,
        3,
    )


def test_an_old_weight_is_kept_until_its_last_use() -> None:
    one = call(0, weights=[5], results=[], differentiable=[])
    first, second = Forward(one, versions=(0,)), Forward(one, versions=(0,))
    step = UpdateParameters(KEY, (5,))
    mark_stashed_versions([first, step, second])
    assert (step.stashed, first.expired_versions, second.expired_versions) == ((5,), [], [(5, 0)])


def test_a_slot_is_emptied_after_its_last_use() -> None:
    first = Forward(call(0, weights=[], results=[1, 2], differentiable=[0]))
    second = Forward(call(1, weights=[], results=[3], differentiable=[1]))
    mark_dead_slots([first, second], live=[3])
    assert (sorted(first.dead_slots), second.dead_slots) == ([0, 2], [1])


def test_gathered_parameters_are_released_before_they_come_again() -> None:
    uses = [Forward(call(n, weights=[4], results=[], differentiable=[])) for n in range(3)]
    gathers = [StartGather(0, 0, "", KEY, (4, 5)) for _ in range(2)]
    mark_releases([gathers[0], uses[0], uses[1], gathers[1], uses[2]], [4])
    assert [use.release for use in uses] == [[], [4], [4]]
    assert [gather.slots for gather in gathers] == [(4,), (4,)]  # nobody here uses slot 5


def test_updates_are_no_actions_of_slices_where_there_are_none() -> None:
    lowered = program()
    slices = SliceBuilder(lowered, 0, slot_table_of(lowered, 0))
    assert not any(slices.handles(i) for i in lowered.instructions if isinstance(i, Update))
