"""Carries out Send, Receive and AwaitMessage on one rank.

The `delivery` of an action says how its kind of messages is packed and where received boxes are put
(delivery.py); a part is one box of a message. To post a receive is to start it. `transport.early_receives`
is True if a receive may be posted long before its send, because tags match them (gloo; not NCCL).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from raddle.graph.dtypes import resolve_conj_and_neg
from raddle.runtime.actions import AwaitMessage, Receive, Send
from raddle.runtime.delivery import MessagePart
from raddle.runtime.early_receives import EarlyReceives
from raddle.runtime.execution.store import Store
from raddle.transport.base import Pending, PendingMessage, Transport


class Messages:
    """The messages to and from one rank that are in transit.

    receives: step -> its receives in order. Usually all actions have one order and the only key is 0. In a
    greedy schedule (greedy.py) each step has its own order and its own thread; then only the thread with
    `compute_lock` computes, and a thread that waits for a message releases the lock.
    """

    def __init__(
        self, receives: Mapping[int, Sequence[Receive]], transport: Transport, store: Store
    ) -> None:
        self.transport, self.store = transport, store
        self.early_receives = {
            step: EarlyReceives(step_receives, self.post)
            for step, step_receives in receives.items()
        }
        self.compute_lock = threading.Lock()
        self.incoming: dict[int, PendingMessage] = {}  # number of a posted receive -> its message
        self._pending_sends: dict[int, Pending] = {}  # number of a send -> its transfer
        # Empty tensors: they tell the transport the dtype and the torch device of a message.
        self._dtype_examples: dict[torch.dtype, Tensor] = {}
        self._updating = True  # whether this run ends with an update

    def begin(self, *, updating: bool) -> None:
        """Starts a run. Without an update, parameters and their gradients are not sent (push, pull)."""
        self._updating = updating
        for receives in self.early_receives.values():
            receives.begin()

    def post_early(self, step: int) -> None:
        """Posts the first receives of a step, if the transport allows receives before their sends."""
        if self.transport.early_receives:
            self._receives_of(step).post_early()

    def send(self, action: Send) -> None:
        """Packs and sends a message."""
        delivery = action.delivery
        if delivery.only_with_update and not self._updating:
            return  # no message of its Move is sent then
        if self.transport.early_receives and action.posted_before is not None:
            # gloo sends a message only after the receiver has announced its buffer. If the announcement
            # waited behind a large message of this rank, the two directions of a link would take turns.
            receive = action.posted_before
            self._receives_of(receive.key.step).ensure_posted(receive)
        tensors = [self._assembled(part, action) for part in action.parts]
        if not tensors:  # a signal
            buffer = torch.zeros(1, dtype=action.dtype, device=self.store.place)
        elif len(tensors) == 1:
            buffer = resolve_conj_and_neg(tensors[0].detach()).contiguous().view(-1)
            if delivery.needs_copy:
                buffer = buffer.clone()
        else:
            buffer = torch.cat([t.detach().reshape(-1) for t in tensors])
        # The transport's `post` starts a send (its receive is `expect`); `post` below posts a receive.
        pending = self.transport.post(action.peer, action.tag, buffer, action.label)
        self._pending_sends[action.number] = pending  # this also keeps the buffer alive
        if delivery.sends_gradients:
            for part in action.parts:
                for slot in part.slots:
                    self.store.clear_gradient(slot)
        if action.ends_batch:
            self.transport.flush()
        self.store.drop(action.dead_slots)

    def receive(self, receive: Receive) -> None:
        """Posts a receive, unless it was posted early."""
        if self.transport.early_receives:
            self._receives_of(receive.key.step).ensure_posted(receive)
        else:
            self.post(receive)
        if receive.ends_batch:
            self.transport.flush()

    def await_message(self, action: AwaitMessage) -> None:
        """Waits for a message and puts its boxes where they belong."""
        receive = action.receive
        message = self.incoming.pop(receive.number, None)
        if message is None:  # not sent in this run, as it has no update
            return
        buffer = self._wait(message)
        for number in action.acknowledged_sends:  # these have arrived, so wait() returns at once
            if number in self._pending_sends:
                self._pending_sends.pop(number).wait()
        if self.transport.early_receives:
            self._receives_of(receive.key.step).mark_received(receive)
        parts, deliver = receive.parts, receive.delivery.deliver
        if len(parts) == 1:
            deliver(self.store, parts[0], buffer.view(parts[0].shape))
        elif parts:
            pieces = torch.split(buffer, [math.prod(part.shape) for part in parts])
            for part, piece in zip(parts, pieces, strict=True):
                deliver(self.store, part, piece.view(part.shape))
        self.store.drop(action.dead_slots)

    def finish(self) -> None:
        """Waits until all sends are complete."""
        for pending in self._pending_sends.values():
            pending.wait()
        self._pending_sends.clear()

    def post(self, receive: Receive) -> None:
        """Posts a receive now."""
        if receive.delivery.only_with_update and not self._updating:
            return
        example = self._dtype_examples.get(receive.dtype)
        if example is None:
            example = torch.empty(0, dtype=receive.dtype, device=self.store.place)
            self._dtype_examples[receive.dtype] = example
        self.incoming[receive.number] = self.transport.expect(
            receive.peer, receive.tag, example, receive.elements, receive.label
        )

    def _assembled(self, part: MessagePart, action: Send) -> Tensor:
        """Returns the tensor of one box of a message: a value, or a gradient."""
        store = self.store
        if action.delivery.sends_gradients:
            tensors = [store.gradient_or_zeros(s, action.dtype) for s in part.slots]
        else:
            tensors = [store.slots[s] for s in part.slots]
        return tensors[0] if part.assemble is None else part.assemble(*tensors)

    def _receives_of(self, step: int) -> EarlyReceives:
        return self.early_receives[step if len(self.early_receives) > 1 else 0]

    def _wait(self, message: PendingMessage) -> Tensor:
        """Waits for a message and returns it; in a greedy schedule, other steps may compute meanwhile."""
        if len(self.early_receives) == 1:
            return message.wait()
        self.compute_lock.release()
        try:
            return message.wait()
        finally:
            self.compute_lock.acquire()
