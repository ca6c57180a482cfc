"""A home with staleness (SSP, Ho et al., NIPS 2013): each gradient is an update of its own.

A worker's pull at clock c is answered when the slowest worker's clock is at least c - s. Others' updates
come while the home's own worker computes, so they go to a copy (the master), from which the bound rows are
copied when the home's own pull is due. And they come at any time, so a pull carries a copy.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from raddle.sync.item import Item
from raddle.sync.parameter_server import Back, Home, Homed, Send, Updates, settle
from raddle.sync.server_stalls import Waiting
from raddle.transport.wire import PULL, Frame


class StaleHome(Home):
    """`bound`: steps that a worker may be ahead of the slowest; None: any number."""

    def __init__(
        self, rank: int, updates: Updates, send: Send, back: Back, bound: int | None
    ) -> None:
        super().__init__(rank, updates, send, back)
        self._bound = bound

    def bind(self, item: Item, rows: Tensor, master: Tensor | None) -> None:
        if master is None:
            master = rows.clone() if self.rank in item.workers else rows
        self.items[item.number] = Homed(item, rows, master)

    def push(self, worker: int, number: int, clock: int, part: Tensor) -> None:
        homed = self.items[number]
        with self.updates.lock, torch.no_grad():
            homed.check_clock(self.rank, worker, clock)
            self.updates.update(homed, worker, clock, part)
            homed.clocks[worker] = clock
            homed.owed.append((time.perf_counter(), worker, clock))
            self._answer(homed)

    def served(self, clock: int) -> bool:
        return all(h.version >= clock * len(h.order) for h in self.items.values())

    def waiting(self) -> list[Waiting]:
        now, found = time.perf_counter(), []
        for homed in self.items.values() if self._bound is not None else ():
            since, _, clock = min(tuple(homed.owed), default=(now, 0, 0))
            clocks = dict(homed.clocks)
            missing = tuple(w for w in homed.order if clocks[w] < clock - (self._bound or 0))
            if missing:
                found.append(Waiting(homed.item.name, now - since, missing))
        return found

    def _answer(self, homed: Homed) -> None:
        """Those whose pull is due. Under the lock of updates."""
        slowest = min(homed.clocks.values())
        due = [o for o in homed.owed if self._bound is None or slowest >= o[2] - self._bound]
        if not due:
            return
        homed.owed = [o for o in homed.owed if o not in due]
        payload: Tensor | None = None
        own = 0
        for _, worker, clock in due:
            if worker == self.rank:
                own = clock
                continue
            if payload is None:
                payload = homed.flat.to("cpu", copy=True)
            frame = Frame(PULL, homed.item.number, clock, homed.version)
            self._send(worker, frame, payload, homed.item.priority)
        if own:
            homed.rows.copy_(homed.master)
            settle(homed.rows)
            self._back(homed.item.number, own)
