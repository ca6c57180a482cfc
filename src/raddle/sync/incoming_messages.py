"""Dispatches the messages that arrive on a rank: gradients to its parameter server, rows to its worker.

A push is a worker's gradient; a pull is the updated rows that a server sends back. A wire receives the
messages; a frame is the header of a message (transport/wire.py). An item is a slice of a parameter;
frame.item is its number. frame.clock counts the gradients of the item that the worker has submitted.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from torch import Tensor

from raddle.sync.item import Item, read_payload
from raddle.sync.parameter_server import ParameterServer
from raddle.sync.rank_failure import RankFailure
from raddle.sync.worker import Worker
from raddle.transport.wire import PULL, PUSH, Frame


class IncomingMessages:
    """Handles one message in each call; the wire calls it on its threads.

    It stores exceptions in `failure`, and the threads that wait for messages raise them.
    """

    def __init__(
        self,
        rank: int,
        items: Sequence[Item],
        server: ParameterServer,
        worker: Worker,
        failure: RankFailure,
    ) -> None:
        self.closed = False
        self._rank, self._items = rank, items
        self._server, self._worker, self._failure = server, worker, failure
        self._lock = threading.Lock()

    def __call__(self, source: int, frame: Frame, payload: Tensor) -> None:
        if self.closed or self._failure.reason:
            return
        try:
            item = self._items[frame.item]
            values = read_payload(self._rank, source, item, payload)
            if frame.kind == PUSH:
                if item.server != self._rank or source not in item.workers:
                    raise ValueError(
                        f"rank {self._rank} got a gradient of '{item.name}' from rank {source}: its "
                        f"workers are {item.workers} and its server is {item.server}"
                    )
                self._server.push(source, frame.item, frame.clock, values)
            elif frame.kind == PULL:
                self._worker.receive(source, item, frame.clock, values)
        except Exception as error:
            self._failure.set_exception(error)

    def on_lost_peer(self, reason: str) -> None:
        """Stores a failure; the wire calls it when it has lost the connection to a rank."""
        if not self.closed:
            self._failure.set_reason(reason)

    def close(self) -> bool:
        """Ignores all messages from now on. Returns False if it was closed before."""
        with self._lock:
            was_open, self.closed = not self.closed, True
            return was_open
