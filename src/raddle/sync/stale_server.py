"""A parameter server with staleness (stale synchronous parallel, SSP, Ho et al., NIPS 2013).

It makes an update from each gradient when it arrives, and does not wait for the other workers.

An item is a slice of a parameter: some of its rows. A push is a worker's gradient of an item, a pull the
updated rows that the server sends back. The clock c of a worker counts its pushes of an item. Its pull is
sent when the slowest worker's clock is at least c - s, where s is the bound of the staleness. Gradients of
other ranks arrive while the worker on this rank computes, so updates go to a copy of the rows, the master.
It is copied into this rank's parameter when the pull of this rank's worker is due. The master may change
before a pull is sent, so a pull contains a copy of it.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from raddle.sync.item import Item
from raddle.sync.item_rows import ItemRows
from raddle.sync.parameter_server import (
    MarkReturned,
    ParameterServer,
    RowUpdater,
    Send,
    ServerItem,
    wait_for_stream,
)
from raddle.sync.server_stalls import StalledItem
from raddle.transport.wire import PULL, Frame


class StaleServer(ParameterServer):
    """The items that this rank serves with staleness.

    bound: how many steps a worker may be ahead of the slowest worker; None: any number.
    """

    def __init__(
        self,
        rank: int,
        updater: RowUpdater,
        send: Send,
        mark_returned: MarkReturned,  # called when updated rows are back at the worker of this rank
        bound: int | None,
    ) -> None:
        super().__init__(rank, updater, send, mark_returned)
        self._bound = bound

    def bind(self, item: Item, rows: ItemRows, master: ItemRows | None) -> None:
        if master is None:
            master = rows.clone() if self.rank in item.workers else rows
        self.items[item.number] = ServerItem(item, rows, master)

    def push(self, worker: int, number: int, clock: int, gradient: Tensor) -> None:
        entry = self.items[number]
        with self.updater.lock, torch.no_grad():
            entry.check_clock(self.rank, worker, clock)
            self.updater.update(entry, worker, clock, gradient)
            entry.clocks[worker] = clock
            entry.pending_pulls.append((time.perf_counter(), worker, clock))
            self._send_due_pulls(entry)

    def is_updated_to(self, clock: int) -> bool:
        # One update for each gradient of each worker.
        return all(e.version >= clock * len(e.sorted_workers) for e in self.items.values())

    def stalled_items(self) -> list[StalledItem]:
        now, stalled = time.perf_counter(), []
        for entry in self.items.values() if self._bound is not None else ():
            # The oldest push whose pull is not sent.
            since, _, clock = min(tuple(entry.pending_pulls), default=(now, 0, 0))
            clocks = dict(entry.clocks)
            missing = tuple(
                w for w in entry.sorted_workers if clocks[w] < clock - (self._bound or 0)
            )
            if missing:
                stalled.append(StalledItem(entry.item.name, now - since, missing))
        return stalled

    def _send_due_pulls(self, entry: ServerItem) -> None:
        """Sends the pulls that are due. The caller holds the updater's lock."""
        slowest = min(entry.clocks.values())
        due = [
            (pushed, worker, clock)
            for pushed, worker, clock in entry.pending_pulls
            if self._bound is None or slowest >= clock - self._bound
        ]
        if not due:
            return
        entry.pending_pulls = [p for p in entry.pending_pulls if p not in due]
        payload: Tensor | None = None
        local_clock = 0
        for _, worker, clock in due:
            if worker == self.rank:
                local_clock = clock
                continue
            if payload is None:
                payload = entry.master.flat().to("cpu", copy=True)
            frame = Frame(PULL, entry.item.number, clock, entry.version)
            self._send(worker, frame, payload, entry.item.priority)
        if local_clock:
            entry.rows.write(entry.master.flat())
            wait_for_stream(entry.rows)
            self._mark_returned(entry.item.number, local_clock)
