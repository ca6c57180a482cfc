"""The first step of a wrapped optimizer (sync.Optimizer), in which all ranks together choose a mechanism.

Gradients stay in p.grad until then. A mechanism is a way of synchronising gradients (mechanism.py).

If a barrier is needed (all gradients are summed before any update), the ranks choose the bucketed
mechanism, else the sliced one. Some reasons for a barrier show only in the first step: a script that clips
gradients, or a GradScaler. A barrier reason is a sentence that says why; empty: no barrier.

`settings.sync` is the sync kind (plans/sync/sync_kind.py). Its properties: bucketed, gradients are
all-reduced in buckets (`allreduce`); by_priority, the most urgent slice goes first (`p3`); collective,
slices are all-reduced without servers (`p3:collective`); has_servers, a server updates each slice
(`ps`, `p3`, and `sharded`, where the holder that updates a slice is its server); synchronous, its staleness
is 0.

A guard is a forward pre-hook that makes a module wait for its parameters (forward_guards.py). A parameter
is unguarded if the forward reads it before its guard has run.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raddle.sync.bucketed_mechanism import BucketedMechanism
from raddle.sync.channels import Channels
from raddle.sync.collective_updates import CollectiveUpdates, order_slices
from raddle.sync.forward_guards import ForwardGuards
from raddle.sync.mechanism import GradientCounter, GradientHandler, Mechanism
from raddle.sync.parameter_slices import ParameterSlices
from raddle.sync.sliced_mechanism import SlicedMechanism
from raddle.sync.sliced_updates import SlicedUpdates, make_server_updates
from raddle.sync.sum_timing import CompletionTimes, measure_all_reduce
from raddle.sync.sync_settings import SyncSettings
from raddle.sync.trained_parameters import TrainedParameters


def make_first_handler(
    trained: TrainedParameters,
    model: nn.Module,
    channels: Channels,
    settings: SyncSettings,
    barrier_reason: str,
) -> GradientHandler:
    """Returns the first gradient handler: BucketedMechanism if that is certain now, else FirstStep."""
    if barrier_reason or settings.sync.bucketed:
        return BucketedMechanism(trained, channels, settings, barrier_reason)
    # by_priority (p3): a step does not wait for its updates, so the next forward must.
    guards = ForwardGuards(model, trained.index_by_id) if settings.sync.by_priority else None
    return FirstStep(trained, channels, settings, guards)


class FirstStep(GradientHandler):
    """Leaves gradients in p.grad during the first step, and chooses the mechanism at its end.

    trained: the optimizer's parameters, by index. channels: its communication with other ranks.
    The guards record the order in which the forward uses parameters. FirstStep records when their gradients
    are complete, and raises if the script changes gradients between backward and step.
    """

    def __init__(
        self,
        trained: TrainedParameters,
        channels: Channels,
        settings: SyncSettings,
        guards: ForwardGuards | None,
    ) -> None:
        super().__init__(trained)
        self._channels, self._settings, self._guards = channels, settings, guards
        self._gradient_counts = GradientCounter(
            channels.rank, trained.names, settings.backward_passes
        )
        self._completion_times = CompletionTimes(trained.device)
        self._checksums: dict[int, int] = {}  # parameter -> checksum of its gradient

    def on_gradient(self, index: int) -> None:
        self._gradient_counts.add(index)
        gradient = self.trained.parameters[index].grad
        assert gradient is not None
        if self._settings.sync.collective:
            self._completion_times.record(index)
        # Completion times do not contain the time of the checksum: later backwards compute none.
        with self._completion_times.excluded():
            self._checksums[index] = _checksum(gradient)

    def on_zero_grad(self) -> None:
        self._gradient_counts.counts.clear()
        self._checksums.clear()

    def close(self) -> None:
        if self._guards is not None:
            self._guards.close()

    def choose_mechanism(self, reason: str) -> Mechanism:
        """Chooses the mechanism together with all ranks, and returns it.

        reason: why this rank needs a barrier; empty: it needs none. One rank's reason holds for all.
        """
        self._check_unchanged()
        order = list(self._guards.use_order) if self._guards is not None else []
        # For each rank: its reason, and the order in which its forward uses parameters
        replies = self._channels.exchange((reason, order))
        barrier_reason = next((r for r, _ in replies if r), "")
        if barrier_reason and not self._settings.sync.synchronous:
            raise RuntimeError(
                f"sync '{self._settings.sync_text}' cannot wait until all gradients are summed, as is "
                f"needed here ({barrier_reason}): choose ps"
            )
        if barrier_reason:
            self.close()
            unsummed = self._gradient_counts.counts  # keys: parameters with a gradient
            return BucketedMechanism(
                self.trained, self._channels, self._settings, barrier_reason, unsummed
            )
        # The order of rank 0; parameters that no guard of its forward has seen come last.
        use_order = [*dict.fromkeys([*replies[0][1], *range(len(self.trained.parameters))])]
        updates = self._make_updates(use_order)
        sliced = SlicedMechanism(
            self.trained, self._channels, self._settings, updates, self._guards
        )
        unguarded = (
            self._guards.finish_first_step(self._gradient_counts.counts)
            if self._guards is not None
            else ()
        )
        if unguarded:
            sliced.unguard(set(unguarded))
        return sliced

    def _check_unchanged(self) -> None:
        """Raises if the script has changed a gradient after the backward."""
        for index, checksum in self._checksums.items():
            gradient = self.trained.parameters[index].grad
            if gradient is not None and _checksum(gradient) != checksum:
                raise RuntimeError(
                    f"rank {self._channels.rank} finds the gradient of '{self.trained.names[index]}' "
                    "changed after backward, before it was summed (unscale_, clip_grad_norm_?): wrap with "
                    "barrier=True, or use optimizer.clip_grad_norm"
                )

    def _make_updates(self, use_order: list[int]) -> SlicedUpdates:
        """Returns new SlicedUpdates: servers update the slices, or all ranks sum and update every slice.

        In the second case rank 0 makes the order of the sums from the times of its first backward.
        use_order: all parameters, in the order of their first use in the forward.
        """
        trained, channels, settings = self.trained, self._channels, self._settings
        slices = ParameterSlices(
            trained.names, trained.parameters, settings.sync, channels.size, use_order
        )
        if settings.sync.has_servers:
            return make_server_updates(
                slices, trained.optimizer, settings.sync.staleness, channels.cpu_transport,
                channels.exchange, stall=settings.stall, record_span=channels.record_span,
            )  # fmt: skip
        # It opens channels.sum_transport and returns its stall inspector, which warns which ranks are
        # missing in an all-reduce.
        stall_inspector = channels.open_sum_transport()
        cost = measure_all_reduce(
            channels.sum_transport, trained.device, trained.parameters[0].dtype
        )
        ready_seconds = self._completion_times.since_first(len(trained.parameters))
        order = channels.exchange(order_slices(slices, ready_seconds, cost))[0]
        return CollectiveUpdates(
            slices, trained.optimizer, channels.sum_transport, channels.exchange, order=order,
            stall_inspector=stall_inspector, debug=settings.debug, record_span=channels.record_span,
        )  # fmt: skip


def _checksum(gradient: Tensor) -> int:
    """Returns the sum of a gradient's bytes. It changes if the gradient is scaled."""
    if gradient.layout != torch.strided or not gradient.numel():
        return 0
    flat = gradient.detach().contiguous().view(-1)
    return int(flat.view(torch.uint8).sum(dtype=torch.int64))
