"""The worker's side of synchronising: gradients are handed in, and updated rows are waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from raddle.sync.item import Item
from raddle.sync.parameter_server import Record
from raddle.sync.rank_failure import Failure
from raddle.sync.server_stalls import Waiting, logger, sentence, unanswered


class Held:
    """One item at a worker."""

    __slots__ = ("flat", "handed", "here", "item")

    def __init__(self, item: Item, rows: Tensor | None, here: threading.Event) -> None:
        self.item, self.here = item, here
        self.flat = None if rows is None else rows.view(-1)
        self.handed = 0  # clock
        here.set()  # whether what was handed in has come back


class Worker:
    """The items that this rank hands in. `overdue`: what its own home cannot answer yet.

    A wait warns after `stall` seconds and fails after `patience`.
    """

    def __init__(
        self, rank: int, failure: Failure, overdue: Callable[[], Sequence[Waiting]], *,
        stall: float, patience: float, record: Record | None,
    ) -> None:  # fmt: skip
        self.items: dict[int, Held] = {}
        self.patience, self.record = patience, record
        self._rank, self._failure, self._overdue = rank, failure, overdue
        self._brief = min(stall, patience)

    def bind(self, item: Item, rows: Tensor | None) -> None:
        here = self._failure.wakes(threading.Event())
        self.items[item.number] = Held(item, rows, here)

    def leave(self, number: int) -> int:
        """The clock with which an item is handed in now."""
        held = self.items[number]
        if held.item.returned or held.item.home == self._rank:
            held.here.clear()
        held.handed += 1
        return held.handed

    def wait(self, number: int) -> None:
        """Returns when what was last handed in has come back; at once if nothing is under way."""
        self._failure.check()
        held = self.items.get(number)
        if held is None or held.here.is_set():
            self._failure.check()  # a failure sets it as well
            return
        begin, home, name = time.perf_counter(), held.item.home, held.item.name
        if not held.here.wait(self._brief):
            if home != self._rank or not self._overdue():  # else the watcher says it
                logger.warning("%s", self.late(home, name, time.perf_counter() - begin))
            if not held.here.wait(self.patience - self._brief):
                late = self.late(home, name, time.perf_counter() - begin)
                self._failure.happen(late, TimeoutError)
        self._failure.check()
        if self.record:
            self.record(number, "wait", begin, time.perf_counter())

    def late(self, home: int, name: str, seconds: float) -> str:
        """Who waits for whom: a home knows whose gradients are missing, others whom they have asked."""
        overdue = self._overdue() if home == self._rank else []
        if overdue:
            return sentence(self._rank, overdue)
        return unanswered(self._rank, home, name, seconds)

    def take(self, source: int, item: Item, clock: int, values: Tensor) -> None:
        """Updated rows have come from the home."""
        held = self.items.get(item.number)
        if held is None or held.flat is None or source != item.home:
            raise ValueError(
                f"rank {self._rank} got rows of '{item.name}' from rank {source}: its workers are "
                f"{item.workers} and its home is {item.home}"
            )
        begin = time.perf_counter()
        if clock == held.handed and not held.here.is_set():
            with torch.no_grad():
                held.flat.copy_(values)
        self.back(item.number, clock)
        if self.record:
            self.record(item.number, "pull", begin, time.perf_counter())

    def back(self, number: int, clock: int) -> None:
        """An item's rows are up to date."""
        held = self.items[number]
        if clock != held.handed or held.here.is_set():
            raise ValueError(
                f"rank {self._rank} got back '{held.item.name}' with clock {clock} and has handed in "
                f"clock {held.handed}: each comes back once, in order"
            )
        held.here.set()

    def out(self) -> list[Item]:
        """What has been handed in and is not back."""
        return [held.item for held in self.items.values() if not held.here.is_set()]
