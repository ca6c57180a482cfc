"""A wire between threads, each of which is a rank. A wire sends slices of parameters by priority (wire.py).

A frame is the header of a message. `limits`: by number of an item (a slice, or several slices that are sent
together), the largest payload in bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from raddle.transport.inbox import Inbox, WireFailure
from raddle.transport.wire import (
    Counters,
    Frame,
    OnFailure,
    OnMessage,
    Outbox,
    QueuedMessage,
    Wire,
    check_payload,
    name_ranks,
)


def memory_wires(size: int, *, timeout: float = 300.0) -> list[Wire]:
    """Returns one end of the wire for each rank; timeout: seconds to wait for another rank."""
    wires: list[MemoryWire] = []
    for rank in range(size):
        wires.append(MemoryWire(rank, size, wires, timeout))
    return list(wires)


class MemoryWire:
    """One rank's end. A thread for each peer copies queued messages and delivers them to that peer.

    wires: the ends of all ranks, by rank; `memory_wires` fills the list.
    """

    def __init__(
        self, rank: int, size: int, wires: Sequence[MemoryWire], timeout: float = 300.0
    ) -> None:
        self.rank, self.size = rank, size
        self.sent = {peer: 0 for peer in range(size) if peer != rank}
        self._wires, self._timeout = wires, timeout
        self._inbox, self._failure = Inbox(), WireFailure()
        self._boxes = {peer: Outbox() for peer in self.sent}  # the queue of each peer
        self._threads: dict[threading.Thread, int] = {}  # thread -> its peer
        self._lock = threading.Lock()
        self._closed = False

    @property
    def counters(self) -> Counters:
        return sum((box.counters for box in self._boxes.values()), Counters())

    def expect(self, limits: Mapping[int, int]) -> None:
        self._inbox.expect(limits)

    def start(self, on_message: OnMessage, on_failure: OnFailure) -> None:
        self._failure.set_callback(on_failure)
        self._inbox.open(on_message)
        for peer in self._boxes:
            name = f"raddle wire {self.rank} to {peer}"
            thread = threading.Thread(
                target=self._send_queued, args=(peer,), name=name, daemon=True
            )
            self._threads[thread] = peer
            thread.start()

    def send(self, target: int, frame: Frame, payload: Tensor, priority: int) -> None:
        check_payload(self.rank, self.size, target, payload)
        peer_closed = self._wires[target]._closed
        if peer_closed or not self._boxes[target].put(priority, frame, payload):
            who = f"rank {target} has" if peer_closed else "it has itself"
            raise RuntimeError(
                f"rank {self.rank} cannot send the {frame} to rank {target}: {who} closed the connection: "
                "close after all have synchronised"
            )
        with self._lock:
            self.sent[target] += payload.nbytes

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for box in self._boxes.values():
            box.close()
        deadline = time.monotonic() + self._timeout
        this_thread = threading.current_thread()
        for thread in self._threads:
            if thread is not this_thread:
                thread.join(max(0.0, deadline - time.monotonic()))
        slow_peers = {p for t, p in self._threads.items() if t.is_alive() and t is not this_thread}
        for box in self._boxes.values():
            box.close(drop=True)
        if slow_peers:
            names = name_ranks(slow_peers)
            self._failure.report(
                f"rank {self.rank} has waited {self._timeout:.1f} s for {names} to take what "
                "is queued: see what the other side does, or set a longer time-out"
            )

    def _send_queued(self, peer: int) -> None:
        """Sends what is queued for a peer, until the queue is closed. Runs on its own thread."""
        box, peer_wire = self._boxes[peer], self._wires[peer]
        while (message := box.take()) is not None:
            if not peer_wire._inbox.opened.wait(self._timeout):
                self._failure.report(
                    f"rank {self.rank} has waited {self._timeout:.1f} s for rank {peer} to start its "
                    "wire: see what it does, or set a longer time-out"
                )
                box.close(drop=True)
                return
            begin = time.perf_counter()
            payload = flat_copy(message.payload)
            box.count_sent(message, time.perf_counter() - begin)
            peer_wire._receive(self.rank, message, payload)
            del payload, message  # do not keep them alive while waiting for the next

    def _receive(self, source: int, message: QueuedMessage, payload: Tensor) -> None:
        """Takes a message of rank `source`; runs on a thread of that rank."""
        frame = message.frame
        refusal = self._inbox.refusal(frame, payload.nbytes)
        if refusal:
            self._failure.report(
                f"rank {self.rank} got the {frame} from rank {source}, which it did not expect: "
                f"{refusal}: see whether all ranks have the same plan"
            )
            return
        try:
            self._inbox.deliver(source, frame, payload)
        except Exception as error:
            self._failure.report(
                f"rank {self.rank} could not take the {frame} from rank {source}: {error!r}"
            )


def flat_copy(payload: Tensor) -> Tensor:
    """Returns a copy of a contiguous tensor as flat bytes."""
    if not payload.numel():
        return torch.empty(0, dtype=torch.uint8)
    return payload.detach().reshape(-1).view(torch.uint8).clone()
