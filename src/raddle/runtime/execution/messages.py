"""Messages of one rank while it runs: packed, sent, posted ahead, waited for, put where they belong."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from raddle.graph.dtypes import settled
from raddle.runtime.actions import AwaitMessage, Receive, Send
from raddle.runtime.delivery import Part
from raddle.runtime.early_receives import Posting
from raddle.runtime.execution.store import Store
from raddle.transport.base import Arriving, Pending, Transport


class Messages:
    """What is under way to and from one rank.

    `receives` are those of each step that has an order of its own; where there are several, each has a
    thread, and whoever waits for a message lets others have their `turn`.
    """

    def __init__(
        self, receives: Mapping[int, Sequence[Receive]], transport: Transport, store: Store
    ) -> None:
        self.transport, self.store = transport, store
        self.postings = {step: Posting(own, self.post) for step, own in receives.items()}
        self.turn = threading.Lock()
        self.posted: dict[int, Arriving] = {}
        self._sending: dict[int, Pending] = {}  # by the number of the send
        self._likes: dict[torch.dtype, Tensor] = {}  # of each type, something on this rank's device
        self._updating = True

    def begin(self, *, updating: bool) -> None:
        """A run begins; without an update, parameters stay as they are, and nobody sends them."""
        self._updating = updating
        for posting in self.postings.values():
            posting.begin()

    def ahead(self, step: int) -> None:
        """Posts what comes first in a step."""
        if self.transport.early:
            self._posting(step).ahead()

    def send(self, action: Send) -> None:
        delivery = action.delivery
        if delivery.of_updates and not self._updating:
            return
        tensors = [self._part(part, action) for part in action.parts]
        if not tensors:  # a signal
            buffer = torch.zeros(1, dtype=action.dtype, device=self.store.place)
        elif len(tensors) == 1:
            buffer = settled(tensors[0].detach()).contiguous().view(-1)
            if delivery.changes:
                buffer = buffer.clone()
        else:
            buffer = torch.cat([t.detach().reshape(-1) for t in tensors])
        pending = self.transport.post(action.peer, action.tag, buffer, action.label)
        self._sending[action.number] = pending  # which keeps the buffer
        if delivery.of_gradients:
            for part in action.parts:
                for slot in part.slots:
                    self.store.forget(slot)
        self.store.drop(action.dead_slots)

    def receive(self, receive: Receive) -> None:
        """The place at which a receive has to be posted by."""
        if self.transport.early:
            self._posting(receive.key.step).reach(receive)
        else:
            self.post(receive)

    def arrive(self, action: AwaitMessage) -> None:
        receive = action.receive
        found = self.posted.pop(receive.number, None)
        if found is None:  # gradients stay where they are until the update
            return
        buffer = self._wait(found)
        for number in action.acknowledged_sends:  # what this answers has arrived
            if number in self._sending:
                self._sending.pop(number).wait()
        if self.transport.early:
            self._posting(receive.key.step).arrived(receive)
        parts, take = receive.parts, receive.delivery.take
        if len(parts) == 1:
            take(self.store, parts[0], buffer.view(parts[0].shape))
        elif parts:
            pieces = torch.split(buffer, [math.prod(part.shape) for part in parts])
            for part, piece in zip(parts, pieces, strict=True):
                take(self.store, part, piece.view(part.shape))
        self.store.drop(action.dead_slots)

    def finish(self) -> None:
        """Waits until all that was sent has left."""
        for pending in self._sending.values():
            pending.wait()
        self._sending.clear()

    def post(self, receive: Receive) -> None:
        if receive.delivery.of_updates and not self._updating:
            return
        like = self._likes.get(receive.dtype)
        if like is None:
            like = torch.empty(0, dtype=receive.dtype, device=self.store.place)
            self._likes[receive.dtype] = like
        self.posted[receive.number] = self.transport.expect(
            receive.peer, receive.tag, like, receive.elements, receive.label
        )

    def _part(self, part: Part, action: Send) -> Tensor:
        store = self.store
        if action.delivery.of_gradients:
            tensors = [store.gradient(s, action.dtype) for s in part.slots]
        else:
            tensors = [store.slots[s] for s in part.slots]
        return tensors[0] if part.make is None else part.make(*tensors)

    def _posting(self, step: int) -> Posting:
        return self.postings[step if len(self.postings) > 1 else 0]

    def _wait(self, message: Arriving) -> Tensor:
        """Waits for a message; meanwhile other steps may compute."""
        if len(self.postings) == 1:
            return message.wait()
        self.turn.release()
        try:
            return message.wait()
        finally:
            self.turn.acquire()
