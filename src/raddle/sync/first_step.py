"""The first step: gradients stay in p.grad, until all ranks choose how they synchronise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raddle.sync.bucketed_mechanism import Bucketed
from raddle.sync.channels import Channels
from raddle.sync.collective_updates import CollectiveUpdates, order_slices
from raddle.sync.forward_guards import Guards
from raddle.sync.mechanism import Arrivals, Mechanism, Phase
from raddle.sync.parameter_slices import ParameterSlices
from raddle.sync.sliced_mechanism import Sliced
from raddle.sync.sliced_updates import SlicedUpdates, make_server_updates
from raddle.sync.sum_timing import CompletionTimes, measure_all_reduce
from raddle.sync.sync_settings import SyncSettings
from raddle.sync.trained_parameters import TrainedParameters


def first_phase(
    trained: TrainedParameters,
    model: nn.Module,
    lines: Channels,
    settings: SyncSettings,
    barrier: str,
) -> Phase:
    """What an optimizer begins with: where a barrier is sure, gradients are summed from the start."""
    if barrier or settings.sync.bucketed:
        return Bucketed(trained, lines, settings, barrier)
    guards = Guards(model, trained.index_by_id) if settings.sync.by_priority else None
    return Undecided(trained, lines, settings, guards)


class Undecided(Phase):
    """Learns what an order of slices is made from, and sees whether somebody changes gradients."""

    def __init__(
        self,
        trained: TrainedParameters,
        lines: Channels,
        settings: SyncSettings,
        guards: Guards | None,
    ) -> None:
        super().__init__(trained)
        self._lines, self._settings, self._guards = lines, settings, guards
        self._arrivals = Arrivals(lines.rank, trained.names, settings.backward_passes)
        self._moments = CompletionTimes(trained.device)
        self._bits: dict[int, int] = {}  # by parameter, of its gradient

    def arrived(self, index: int) -> None:
        self._arrivals.add(index)
        gradient = self.trained.parameters[index].grad
        assert gradient is not None
        if self._settings.sync.collective:
            self._moments.record(index)
        with self._moments.excluded():
            self._bits[index] = _bits(gradient)

    def zeroed(self) -> None:
        self._arrivals.counts.clear()
        self._bits.clear()

    def close(self) -> None:
        if self._guards is not None:
            self._guards.close()

    def decide(self, reason: str) -> Mechanism:
        """The last moment to find out that something needs a barrier: `reason`, or another rank's."""
        self._check_unchanged()
        order = list(self._guards.order) if self._guards is not None else []
        every = self._lines.exchange((reason, order))
        barrier = next((r for r, _ in every if r), "")
        if barrier and not self._settings.sync.synchronous:
            raise RuntimeError(
                f"{barrier}, which sync '{self._settings.sync_text}' cannot wait for: choose ps"
            )
        if barrier:
            self.close()
            arrived = self._arrivals.counts
            return Bucketed(self.trained, self._lines, self._settings, barrier, arrived)
        urgent = [*dict.fromkeys([*every[0][1], *range(len(self.trained.parameters))])]
        homing = self._homing(urgent)
        sliced = Sliced(self.trained, self._lines, self._settings, homing, self._guards)
        unguarded = self._guards.learned(self._arrivals.counts) if self._guards is not None else ()
        if unguarded:
            sliced.unguard(set(unguarded))
        return sliced

    def _check_unchanged(self) -> None:
        for index, bits in self._bits.items():
            gradient = self.trained.parameters[index].grad
            if gradient is not None and _bits(gradient) != bits:
                raise RuntimeError(
                    f"rank {self._lines.rank} finds the gradient of '{self.trained.names[index]}' changed "
                    "after backward, before it was summed (unscale_, clip_grad_norm_?): wrap with "
                    "barrier=True, or use optimizer.clip_grad_norm"
                )

    def _homing(self, urgent: list[int]) -> SlicedUpdates:
        """With homes, or with sums in an order that rank 0 makes of its first backward."""
        own, lines, settings = self.trained, self._lines, self._settings
        slices = ParameterSlices(own.names, own.parameters, settings.sync, lines.size, urgent)
        if settings.sync.has_servers:
            return make_server_updates(
                slices, own.optimizer, settings.sync.staleness, lines.cpu_transport, lines.exchange,
                stall=settings.stall, record_span=lines.record_span,
            )  # fmt: skip
        late = lines.open_sum_transport()
        rate = measure_all_reduce(lines.sum_transport, own.device, own.parameters[0].dtype)
        ready = self._moments.since_first(len(own.parameters))
        turns = lines.exchange(order_slices(slices, ready, rate))[0]
        return CollectiveUpdates(
            slices, own.optimizer, lines.sum_transport, lines.exchange,
            order=turns, stall_inspector=late, debug=settings.debug, record_span=lines.record_span,
        )  # fmt: skip


def _bits(gradient: Tensor) -> int:
    """A sum over the bits of a gradient: it changes when somebody scales it, whatever is in it."""
    if gradient.layout != torch.strided or not gradient.numel():
        return 0
    held = gradient.detach().contiguous().view(-1)
    return int(held.view(torch.uint8).sum(dtype=torch.int64))
