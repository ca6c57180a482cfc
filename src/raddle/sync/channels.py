"""What one optimizer uses to reach the other ranks: for words, for slices, and for sums."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from raddle.sync.private_torch import default_store
from raddle.sync.session import CPU, Session
from raddle.sync.stall_inspector import Lateness
from raddle.transport.exchange import exchange_over

Note = Callable[[str, str, float, float], None]  # name, lane, start, end


class Lines:
    """All ranks make it at the same time. `words` carries objects and slices; `sums` adds tensors up."""

    def __init__(self, session: Session, device: torch.device, stall: float) -> None:
        self.rank, self.size = session.rank, session.size
        self.words = session.open(CPU)
        self.sums = self.words  # on GPUs another one, once there is something to sum
        self.late: Lateness | None = None
        self.closed = False
        self._session, self._device, self._stall = session, device, stall

    @property
    def note(self) -> Note | None:
        """Where the timeline is told what took time."""
        timeline = self._session.timeline
        return timeline.record if timeline is not None else None

    def exchange(self, mine: Any) -> list[Any]:
        """Objects of all ranks, which all call it."""
        return exchange_over(self.words, CPU, mine)

    def open_sums(self) -> Lateness:
        """Makes ready for sums, on all ranks; gives what says who keeps them waiting."""
        if self._device.type == "cuda":
            self.sums = self._session.open(self._device)
        place = f"sums {self._session.opened}"
        self.late = Lateness(self.rank, self.size, default_store(), place, self._stall)
        return self.late

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """What goes wrong here is told to the others, who would wait for this rank."""
        try:
            yield
        except Exception as error:
            if not self.closed:
                self.fail(str(error))
            raise

    def fail(self, reason: str) -> None:
        for line in {self.words, self.sums}:
            line.fail(reason)

    def close(self) -> None:
        if self.late is not None:
            self.late.close()
        for line in {self.words, self.sums}:
            line.close()
