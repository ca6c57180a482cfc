"""Tests of each part of the executor on its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_models import make_plan, mlp
from torch import Tensor

from raddle.graph.box import Box
from raddle.program.lower import lower
from raddle.program.message_kind import MessageKind
from raddle.program.program import Key
from raddle.runtime.actions import (
    AwaitMessage,
    Backward,
    Bucket,
    Call,
    Feed,
    Forward,
    Receive,
    RecordLoss,
    Send,
    StartAllReduce,
    StartSliceAllReduce,
    SubmitGradients,
    UpdateBuffers,
    UpdateParameters,
)
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.delivery import MessagePart, delivery_of
from raddle.runtime.execution.buffer_updates import update_buffers
from raddle.runtime.execution.compiled_functions import CompiledFunctions
from raddle.runtime.execution.input_feeder import InputFeeder
from raddle.runtime.execution.losses import Losses
from raddle.runtime.execution.message_exchange import Messages
from raddle.runtime.execution.overlapping_parameter_updater import OverlappingParameterUpdater
from raddle.runtime.execution.parameter_updater import (
    ParameterUpdater,
    with_strides_of,
)
from raddle.runtime.execution.segments import Segments
from raddle.runtime.execution.sliced_parameter_updater import SlicedParameterUpdater
from raddle.runtime.execution.store import Store
from raddle.runtime.function_writer import GeneratedCode, Piece
from raddle.transport.thread_transport import Hub, ThreadTransport

CPU, KEY, DOUBLE = torch.device("cpu"), Key(), torch.float64


def single_rank() -> ThreadTransport:
    return Hub(1).transport(0)


def store(*shapes: tuple[int, ...]) -> Store:
    return Store(shapes, CPU)


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=DOUBLE)


# -- the store ---------------------------------------------------------------------------------------


def test_a_gradient_that_others_see_is_copied_before_it_is_changed() -> None:
    gradients, first = store((2,)), ones(2)
    gradients.add_gradient(0, first)
    gradients.add_gradient(0, ones(2))
    gradients.add_gradient(0, ones(2))
    assert torch.equal(first, ones(2))
    assert torch.equal(gradients.gradient_or_zeros(0, DOUBLE), 3 * ones(2))
    assert gradients.take_gradient(0) is not None
    assert torch.equal(gradients.gradient_or_zeros(0, DOUBLE), 0 * ones(2))  # there is no gradient


def test_boxes_of_gradients_add_up() -> None:
    gradients = store((4,))
    gradients.add_gradient_box(0, (slice(0, 2),), ones(2))
    gradients.add_gradient_box(0, (slice(1, 4),), ones(3))
    assert gradients.gradient_or_zeros(0, DOUBLE).tolist() == [1, 2, 1, 1]
    gradients.clear_gradient(0)
    assert gradients.grads == [None]


# -- messages ------------------------------------------------------------------------------------------


def message(kind: MessageKind, part: MessagePart, **more: Any) -> tuple[Send, Receive]:
    """Send and receive of one message from rank 0 to rank 1, with the same slots on both."""
    delivery = delivery_of(kind, **more)
    send = Send(1, 0, kind, "", [part._replace(index_pairs=())], DOUBLE, KEY, delivery)
    receive = Receive(0, 0, kind, "", [part], DOUBLE, 2, "v", KEY, delivery)
    return send, receive


def deliver(
    send: Send, receive: Receive, source: Store, target: Store, *, updating: bool = True
) -> None:
    """Sends a message from a source store to a target store."""
    hub = Hub(2)
    sender = Messages({0: []}, hub.transport(0), source)
    receiver = Messages({0: [receive]}, hub.transport(1), target)
    sender.begin(updating=updating)
    receiver.begin(updating=updating)
    receiver.post_early(0)
    sender.send(send)
    receiver.receive(receive)
    receiver.await_message(AwaitMessage(receive))
    sender.finish()
    assert not receiver.incoming


WHOLE = MessagePart((2,), (0,), index_pairs=(((slice(0, 2),), (slice(0, 2),)),))


@pytest.mark.parametrize("kind", [k for k in MessageKind if k.content != "nothing"])
def test_what_is_sent_lands(kind: MessageKind) -> None:
    source, target = store((2,)), store((2,))
    (source.grads if kind.content == "gradient" else source.slots)[0] = 3 * ones(2)
    if kind.is_pull:
        target.slots[0] = ones(2)
    deliver(*message(kind, WHOLE), source, target)
    landed = target.grads[0] if kind.content == "gradient" else target.slots[0]
    assert torch.equal(landed, 3 * ones(2))
    assert source.grads == [None]  # the sender clears the gradient
    assert target.with_gradient == ({0} if kind.is_push else set())


@pytest.mark.parametrize("kind", [k for k in MessageKind if k.is_of_parameter])
def test_a_step_without_an_update_sends_no_parameters(kind: MessageKind) -> None:
    source, target = store((2,)), store((2,))
    source.grads[0] = source.slots[0] = ones(2)
    deliver(*message(kind, WHOLE), source, target, updating=False)
    assert source.grads[0] is not None
    assert target.slots == target.grads == [None]


def test_a_signal_carries_nothing_and_arrives() -> None:
    kind = MessageKind.SIGNAL
    send = Send(1, 0, kind, "", [], DOUBLE, KEY, delivery_of(kind))
    receive = Receive(0, 0, kind, "", [], DOUBLE, 1, "v", KEY, delivery_of(kind))
    deliver(send, receive, store(), store())


def test_receives_of_a_move_are_posted_before_its_sends() -> None:
    """gloo would send the announcement of a later receive behind the message."""
    hub = Hub(2)
    send, _ = message(MessageKind.ACTIVATION, WHOLE)
    back = replace(
        message(MessageKind.ACTIVATION, WHOLE)[1], peer=1, tag=1
    )  # from rank 1 to rank 0
    send.posted_before = back
    source = store((2,))
    source.slots[0] = ones(2)
    messages = Messages({0: [back]}, hub.transport(0), source)
    messages.begin(updating=True)
    assert not messages.incoming
    messages.send(send)
    assert list(messages.incoming) == [back.number]


# -- segments ------------------------------------------------------------------------------------------


def product(*, split: bool = False, recompute: bool = False) -> Call:
    """A call: slot 2 = slot 0 (differentiable) * slot 1 (a weight)."""
    box = Box((0,), (2,))
    code = GeneratedCode(
        lambda x, w: (x * w,), (Piece("x", box),), (Piece("w", box),), (), (Piece("y", box),), ""
    )
    return Call(0, "", code, KEY, [0], [1], [], [2], [DOUBLE], True, recompute, split)


def filled() -> Store:
    """A store with the arguments of `product`."""
    filled_store = store((2,), (2,), (2,))
    filled_store.slots[0], filled_store.slots[1] = 2 * ones(2), torch.nn.Parameter(3 * ones(2))
    return filled_store


@pytest.mark.parametrize("single_microbatch", [True, False])
@pytest.mark.parametrize("phases", ["B", "BW"])
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_come_back_slot_by_slot(
    single_microbatch: bool, phases: str, recompute: bool
) -> None:
    slot_store = filled()
    updater = ParameterUpdater(slot_store, single_rank(), updated_slots=[1])
    segments = Segments(
        slot_store, updater, CompiledFunctions(), single_microbatch=single_microbatch
    )
    call = product(split=phases == "BW", recompute=recompute)
    segments.forward(Forward(call))
    assert torch.equal(slot_store.slots[2], 6 * ones(2))
    if recompute:
        assert not segments.saved
        segments.forward(Forward(call, recomputation=True))
    slot_store.grads[2] = ones(2)
    for phase in phases:
        segments.backward(Backward(call, phase))
    assert torch.equal(slot_store.gradient_or_zeros(0, DOUBLE), 3 * ones(2))
    assert torch.equal(slot_store.gradient_or_zeros(1, DOUBLE), 2 * ones(2))
    assert slot_store.with_gradient == {1}
    assert not segments.saved


# -- parameters ------------------------------------------------------------------------------------------


def test_gradients_are_summed_in_a_bucket_and_the_optimizer_sees_them() -> None:
    slot_store = filled()
    seen = []
    updater = ParameterUpdater(slot_store, single_rank(), [1], [Bucket((0,), (1,), DOUBLE, 2)])
    updater.optimizer_step = lambda: seen.append(slot_store.slots[1].grad.clone())
    updater.load({})
    for _ in range(2):  # two steps with two micro-batches each
        updater.accumulate(product(), [ones(2)])
        updater.accumulate(product(), [ones(2)])
        updater.start_all_reduce(StartAllReduce(0, 0, "", KEY))
        updater.update_parameters(UpdateParameters(KEY))
    assert [g.tolist() for g in seen] == [[2, 2], [2, 2]]
    assert slot_store.slots[1].grad is None
    assert not slot_store.with_gradient


def test_gradients_get_the_strides_of_their_parameters() -> None:
    contiguous, channels_last = torch.ones(4, 3, 2, 2), torch.ones(4, 3, 2, 2)
    channels_last = channels_last.to(memory_format=torch.channels_last)
    gradient = torch.randn(4, 3, 2, 2)
    for parameter in (contiguous, channels_last):
        for given in (gradient, gradient.to(memory_format=torch.channels_last)):
            result = with_strides_of(parameter, given)
            assert torch.equal(result, given)
            assert result.stride() == parameter.stride()
            assert (result is given) == (given.stride() == parameter.stride())
    # Strides of dimensions with one element do not matter, so the memory stays the same.
    one = torch.randn(8).as_strided((4, 1, 2), (2, 1, 1))
    result = with_strides_of(torch.ones(4, 1, 2), one)
    assert result.stride() == (2, 2, 1)
    assert result.data_ptr() == one.data_ptr()


def test_autograd_adds_to_what_is_there_so_far() -> None:
    slot_store = filled()
    updater = ParameterUpdater(slot_store, single_rank(), [1], [Bucket((0,), (1,), DOUBLE, 2)])
    updater.load({})
    updater.bucket_buffers[0].fill_(7)  # left from an earlier step
    gradient = updater.accumulated_gradient(product(), 1)
    assert gradient is not None
    assert gradient.tolist() == [0, 0]
    updater.set_gradient(product(), 1, gradient.add_(1))
    assert updater.accumulated_gradient(product(), 1) is gradient
    assert updater.bucket_buffers[0].tolist() == [1, 1]


def test_an_update_leaves_the_weights_of_those_under_way() -> None:
    slot_store = filled()
    updater = OverlappingParameterUpdater(slot_store, single_rank(), [1])
    updater.optimizer_step = lambda: slot_store.slots[1].data.add_(slot_store.slots[1].grad)
    updater.begin(updating=True)
    (used,) = updater.weights_for(Forward(product(), versions=(0,)))
    updater.accumulate(product(), [ones(2)])
    updater.update_parameters(UpdateParameters(KEY, (1,)))
    assert (used.tolist(), slot_store.slots[1].tolist()) == ([3, 3], [4, 4])
    updater.release_weights(product(), [used])
    assert [(line.phase, line.version) for line in updater.weight_uses()] == [("F", 0), ("U", 1)]


class CallLog:
    """Takes the place of a ParameterSync; records the calls of its methods."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name, *args))


def test_slices_are_submitted_and_waited_for() -> None:
    slot_store, call_log = filled(), CallLog()
    updater = SlicedParameterUpdater(slot_store, single_rank(), lambda: call_log)  # type: ignore[arg-type, return-value]
    updater.load({})
    updater.begin(updating=False)
    assert call_log.calls == []
    updater.begin(updating=True)
    updater.weights_for(Forward(product()))
    slot_store.add_gradient(1, ones(2))
    slot_store.with_gradient.add(1)
    updater.submit_gradients(SubmitGradients(KEY, (1,)))
    updater.start_slice_all_reduce(StartSliceAllReduce(KEY, 5, ""))
    updater.update_parameters(UpdateParameters(KEY))
    assert [name for name, *_ in call_log.calls] == [
        "begin_step",
        "wait",
        "submit",
        "start_slice_all_reduce",
        "finish_step",
    ]
    assert not slot_store.with_gradient


# -- the ends of a step ------------------------------------------------------------------------------------


def test_inputs_and_seeds_are_fed() -> None:
    slot_store = store((2,), ())
    first = SlotSource("x", "input", Box((0,), (2,)), 0, Key(0, 1))
    second = SlotSource("seed", "seed", Box((), ()), 1, Key(2, 1))
    feeder = InputFeeder([Feed(first, first.key), Feed(second, second.key)], slot_store, seed=5)
    feeder.begin(lambda source: ones(2), step=3)
    assert torch.equal(slot_store.slots[0], ones(2))
    assert int(slot_store.slots[1]) == 5 + 1_000_003 * (3 + 2) + 1


def test_a_buffer_is_replaced_and_never_written() -> None:
    slot_store = store((4,), (2,), (4,), (4,))
    before = slot_store.slots[0] = ones(4)
    slot_store.slots[1], slot_store.slots[2], slot_store.slots[3] = (
        2 * ones(2),
        ones(4),
        5 * ones(4),
    )
    update_buffers(
        slot_store, UpdateBuffers(KEY, [(2, 3)], [(0, [(Box((1,), (3,)), 1)])], dead_slots=[1, 3])
    )
    assert slot_store.slots[0].tolist() == [1, 2, 2, 1]
    assert before.tolist() == [1, 1, 1, 1]
    assert slot_store.slots[2].tolist() == [5, 5, 5, 5]
    assert slot_store.slots[1] is slot_store.slots[3] is None


def test_a_rank_that_has_the_loss_broadcasts_it() -> None:
    program = lower(mlp(), make_plan(mlp(), {}, 2))  # all operators are on device 0
    hub, results = Hub(2), []
    for rank in (1, 0):
        slot_store = store(())
        losses = Losses(program, hub.transport(rank), slot_store)
        losses.begin(0.5)
        results.append(losses)
        if rank == 0:
            slot_store.slots[0] = torch.tensor(8.0)
            losses.record(RecordLoss(0, starts_backward=True, reports=True, key=KEY))
            assert slot_store.gradient_or_zeros(0, torch.float32).item() == 0.5
    assert [losses.wait().tolist() for losses in results] == [[4.0], [4.0]]
