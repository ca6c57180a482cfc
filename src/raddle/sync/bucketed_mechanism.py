"""The bucketed mechanism: all-reduces gradients in buckets, and every rank updates all parameters.

A mechanism is a way in which sync.Optimizer synchronises gradients (mechanism.py). `backward_passes`: calls
of backward in a step. `settings.sync.wire_dtype`: the name of the dtype to which gradients are compressed
for the all-reduce, such as "bfloat16"; empty: they are not compressed.
"""

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


class BucketedMechanism(Mechanism):
    """Averages gradients in p.grad; the averages are complete at the end of a step's last backward.

    All ranks make this object at the same time.

    channels: this optimizer's communication with other ranks (channels.py).
    barrier_reason: why this mechanism is used although another sync kind was requested; else empty.
    unsummed: indices of parameters whose gradients are in p.grad already and not summed yet.
    """

    def __init__(
        self, trained: TrainedParameters, channels: Channels, settings: SyncSettings, barrier_reason: str,
        unsummed: Iterable[int] = (),
    ) -> None:  # fmt: skip
        super().__init__(trained)
        if barrier_reason:
            logger.info("gradients are summed before the update, on all ranks: %s", barrier_reason)
        self.barrier_reason, self._channels, self._backward_passes = (
            barrier_reason,
            channels,
            settings.backward_passes,
        )
        self._unsummed = dict.fromkeys(unsummed)  # keys: an ordered set, the first completed first
        self._passes_done = 0  # backward calls since the last sums
        self._backward_end = BackwardEnd(self._on_backward_end)
        # Opens channels.sum_transport; its stall inspector warns which ranks are missing in an all-reduce.
        stall_inspector, dtype_name = channels.open_sum_transport(), settings.sync.wire_dtype
        self.buckets = Buckets(
            trained.names, trained.parameters, channels.sum_transport, channels.exchange, stall_inspector,
            nbytes=settings.bucket, compressed_dtype=getattr(torch, dtype_name) if dtype_name else None,
            debug=settings.debug, record_span=channels.record_span,
        )  # fmt: skip

    def on_gradient(self, index: int) -> None:
        self._backward_end.watch()
        self._unsummed[index] = None
        if self._passes_done >= self._backward_passes - 1:  # the step's last backward
            self.buckets.submit(index)

    def on_zero_grad(self) -> None:
        self._passes_done = 0
        self._unsummed.clear()

    def step(self) -> None:
        self._sum()
        self.trained.optimizer.step()

    def average(self, reason: str) -> None:
        self._sum()

    def report(self) -> dict[str, Any]:
        return {
            "bytes": sum(self._channels.sum_transport.collective_bytes.values()),
            "messages": self.buckets.sum_count,
            "waited": {"sums": self.buckets.waited},
        }

    def _on_backward_end(self) -> None:
        """Counts a backward that has ended; after the step's last one, sums the gradients."""
        self._passes_done += 1
        if self._passes_done >= self._backward_passes:
            with self._channels.reporting_failures():
                self._sum()

    def _sum(self) -> None:
        """Sums the gradients that are complete and not summed yet, if there are any."""
        if self._unsummed:
            self.buckets.finish(list(self._unsummed))
            self.on_zero_grad()  # clears no gradient: only this object counts from zero again
