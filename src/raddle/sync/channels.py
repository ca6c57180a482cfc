"""What one optimizer uses to reach the other ranks: for words, for slices, and for sums."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from raddle.sync.private_torch import default_store
from raddle.sync.session import CPU, Session
from raddle.sync.stall_inspector import StallInspector
from raddle.transport.exchange import exchange_objects

RecordSpan = Callable[[str, str, float, float], None]  # name, lane, start, end


class Channels:
    """All ranks make it at the same time. `words` carries objects and slices; `sums` adds tensors up."""

    def __init__(self, session: Session, device: torch.device, stall: float) -> None:
        self.rank, self.size = session.rank, session.size
        self.cpu_transport = session.open_transport(CPU)
        self.sum_transport = (
            self.cpu_transport
        )  # on GPUs another one, once there is something to sum
        self.stall_inspector: StallInspector | None = None
        self.closed = False
        self._session, self._device, self._stall = session, device, stall

    @property
    def record_span(self) -> RecordSpan | None:
        """Where the timeline is told what took time."""
        timeline = self._session.trace
        return timeline.record if timeline is not None else None

    def exchange(self, value: Any) -> list[Any]:
        """Objects of all ranks, which all call it."""
        return exchange_objects(self.cpu_transport, CPU, value)

    def open_sum_transport(self) -> StallInspector:
        """Makes ready for sums, on all ranks; gives what says who keeps them waiting."""
        if self._device.type == "cuda":
            self.sum_transport = self._session.open_transport(self._device)
        key_prefix = f"sums {self._session.opened_transports}"
        self.stall_inspector = StallInspector(
            self.rank, self.size, default_store(), key_prefix, self._stall
        )
        return self.stall_inspector

    @contextlib.contextmanager
    def reporting_failures(self) -> Iterator[None]:
        """What goes wrong here is told to the others, who would wait for this rank."""
        try:
            yield
        except Exception as error:
            if not self.closed:
                self.fail(str(error))
            raise

    def fail(self, reason: str) -> None:
        for transport in {self.cpu_transport, self.sum_transport}:
            transport.fail(reason)

    def close(self) -> None:
        if self.stall_inspector is not None:
            self.stall_inspector.close()
        for transport in {self.cpu_transport, self.sum_transport}:
            transport.close()
