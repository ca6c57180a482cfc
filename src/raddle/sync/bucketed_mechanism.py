"""Gradients are summed in buckets into p.grad by the end of the backward, and every rank updates all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from raddle.sync.channels import Channels
from raddle.sync.gradient_buckets import Buckets
from raddle.sync.mechanism import Mechanism
from raddle.sync.private_torch import BackwardEnd
from raddle.sync.server_stalls import logger
from raddle.sync.sync_settings import SyncSettings
from raddle.sync.trained_parameters import TrainedParameters


class Bucketed(Mechanism):
    """`arrived`: parameters whose gradients are in p.grad and not summed yet. All ranks make it."""

    def __init__(
        self, trained: TrainedParameters, lines: Channels, settings: SyncSettings, barrier: str,
        arrived: Iterable[int] = (),
    ) -> None:  # fmt: skip
        super().__init__(trained)
        if barrier:
            logger.info("gradients are summed before the update, on all ranks: %s", barrier)
        self.barrier, self._lines, self._each = barrier, lines, settings.backward_passes
        self._arrived = dict.fromkeys(arrived)  # since the last sums, in their order
        self._passes = 0  # backward calls that have ended since then
        self._end = BackwardEnd(self._ended)
        late, narrow = lines.open_sum_transport(), settings.sync.wire_dtype
        self.buckets = Buckets(
            trained.names, trained.parameters, lines.sum_transport, lines.exchange, late,
            nbytes=settings.bucket, compressed=getattr(torch, narrow) if narrow else None,
            debug=settings.debug, note=lines.record_span,
        )  # fmt: skip

    def arrived(self, index: int) -> None:
        self._end.watch()
        self._arrived[index] = None
        if self._passes >= self._each - 1:
            self.buckets.give(index)

    def zeroed(self) -> None:
        self._passes = 0
        self._arrived.clear()

    def step(self) -> None:
        self._sum()
        self.trained.optimizer.step()

    def average(self, reason: str) -> None:
        self._sum()

    def report(self) -> dict[str, Any]:
        return {
            "bytes": sum(self._lines.sum_transport.reduced.values()),
            "messages": self.buckets.sums,
            "waited": {"sums": self.buckets.waited},
        }

    def _ended(self) -> None:
        """A backward has ended."""
        self._passes += 1
        if self._passes >= self._each:
            with self._lines.reporting_failures():
                self._sum()

    def _sum(self) -> None:
        """All that has come since the last time is summed, if anything has."""
        if self._arrived:
            self.buckets.finish(list(self._arrived))
            self.zeroed()
