"""The channels between ranks that one wrapped optimizer (sync.Optimizer) uses.

They send Python objects and slices of parameters, and run all-reduces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from raddle.sync.private_torch import default_store
from raddle.sync.session import CPU, Session
from raddle.sync.stall_inspector import StallInspector
from raddle.transport.exchange import exchange_objects

RecordSpan = Callable[[str, str, float, float], None]  # name, lane (row) of the trace, start, end


class Channels:
    """The transports of one wrapped optimizer. All ranks make this object at the same time.

    session: opens transports for all optimizers of this process (session.py).
    stall: seconds of waiting until a warning names the ranks that are missing.
    cpu_transport: sends objects and slices. sum_transport: all-reduces tensors; on CPUs it is the same one.
    """

    def __init__(self, session: Session, device: torch.device, stall: float) -> None:
        self.rank, self.size = session.rank, session.size
        self.cpu_transport = session.open_transport(CPU)
        self.sum_transport = self.cpu_transport  # open_sum_transport replaces it on GPUs
        self.stall_inspector: StallInspector | None = None
        self.closed = False
        self._session, self._device, self._stall = session, device, stall

    @property
    def record_span(self) -> RecordSpan | None:
        """The callback that adds a span (bar) to the Chrome trace; None: there is no trace."""
        trace = self._session.trace
        return trace.record if trace is not None else None

    def exchange(self, value: Any) -> list[Any]:
        """Returns a list with an object from every rank, in rank order. All ranks call it."""
        return exchange_objects(self.cpu_transport, CPU, value)

    def open_sum_transport(self) -> StallInspector:
        """Opens the transport for all-reduces. All ranks call it.

        Returns its stall inspector, which warns which ranks are missing in an all-reduce.
        """
        if self._device.type == "cuda":
            self.sum_transport = self._session.open_transport(self._device)
        # opened_transports: the number of transports that the session has opened, equal on all ranks
        key_prefix = f"sums {self._session.opened_transports}"
        self.stall_inspector = StallInspector(
            self.rank, self.size, default_store(), key_prefix, self._stall
        )
        return self.stall_inspector

    @contextlib.contextmanager
    def reporting_failures(self) -> Iterator[None]:
        """Reports an exception of this context to the other ranks, which would wait for this one."""
        try:
            yield
        except Exception as error:
            if not self.closed:
                self.fail(str(error))
            raise

    def fail(self, reason: str) -> None:
        """Reports to the other ranks that this one has failed."""
        for transport in {self.cpu_transport, self.sum_transport}:
            transport.fail(reason)

    def close(self) -> None:
        if self.stall_inspector is not None:
            self.stall_inspector.close()
        for transport in {self.cpu_transport, self.sum_transport}:
            transport.close()
