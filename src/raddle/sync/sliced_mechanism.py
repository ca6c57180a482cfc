"""The sliced mechanism: gradients leave p.grad slice by slice as soon as they are complete.

Servers or all ranks update the slices (SlicedUpdates, in sliced_updates.py), during the backward and, with
guards, the next forward. A guard is a forward pre-hook that makes a module wait for its parameters
(forward_guards.py). A mechanism is a way in which sync.Optimizer synchronises gradients (mechanism.py).
`backward_passes`: calls of backward in a step; a gradient is complete after the last one.
"""

from __future__ import annotations

from typing import Any

from raddle.sync.channels import Channels
from raddle.sync.forward_guards import ForwardGuards
from raddle.sync.gradient_buckets import check_dense
from raddle.sync.item import UpdateEvent
from raddle.sync.mechanism import GradientCounter, Mechanism
from raddle.sync.server_stalls import logger
from raddle.sync.sliced_updates import SlicedUpdates
from raddle.sync.sync_settings import SyncSettings
from raddle.sync.trained_parameters import TrainedParameters

MAX_REPORTED = 5  # parameters in a report: those with the longest waits


class SlicedMechanism(Mechanism):
    """Submits each gradient when it is complete. All ranks make this object at the same time.

    guards: None if modules do not wait; then `step` waits for all parameters.
    channels: this optimizer's communication with other ranks (channels.py).
    """

    def __init__(
        self, trained: TrainedParameters, channels: Channels, settings: SyncSettings,
        updates: SlicedUpdates, guards: ForwardGuards | None,
    ) -> None:  # fmt: skip
        super().__init__(trained)
        self.updates, self._channels, self._sync_text = updates, channels, settings.sync_text
        self._gradient_counts = GradientCounter(
            channels.rank, trained.names, settings.backward_passes
        )
        self._submitted: set[int] = set()  # parameters, in this step
        self._unguarded: set[int] = set()  # parameters that no module waits for
        self._guards = guards
        if guards is not None:
            guards.wait = self._wait

    def on_gradient(self, index: int) -> None:
        if self._gradient_counts.add(index):
            guarded = self._guards is not None and index not in self._unguarded
            if guarded and self.updates.is_pending(index):
                self.unguard({index})  # the forward has read the parameter without waiting for it
            self._submit(index)

    def on_zero_grad(self) -> None:
        """Counts the gradients of the step anew, unless some were submitted: those have left p.grad."""
        if not self._submitted:
            self._gradient_counts.counts.clear()

    def step(self) -> None:
        setting = self.updates.sliced_optimizer.changed_setting() if self._submitted else ""
        if setting:  # such as "lr"
            raise RuntimeError(
                f"'{setting}' was changed between backward and step, and sync '{self._sync_text}' updates "
                "during the backward: change it before, or wrap with barrier=True"
            )
        all_indices = range(len(self.trained.parameters))
        for index in all_indices:
            if index not in self._submitted:
                self._submit(index)
        self.updates.finish_step()
        self._submitted.clear()
        self._gradient_counts.counts.clear()
        for index in all_indices if self._guards is None else sorted(self._unguarded):
            self.updates.wait(index)

    def average(self, reason: str) -> None:
        """Raises, because gradients of this step have left p.grad already."""
        raise RuntimeError(
            f"{reason}, and with sync '{self._sync_text}' those of this step have left p.grad already: "
            "wrap with barrier=True"
        )

    def synchronize(self) -> None:
        self.updates.synchronize()

    def synchronize_ranks(self) -> None:
        self.updates.synchronize_ranks()

    def state_dict(self) -> dict[str, Any]:
        state = self.trained.optimizer.state
        state.update(self.updates.gather_state())
        try:
            return super().state_dict()
        finally:
            state.clear()  # the state stays with the slices

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.updates.synchronize_ranks()
        super().load_state_dict(state_dict)
        self.updates.sliced_optimizer.scatter_state()
        self._channels.cpu_transport.barrier()  # no rank pushes before all servers have the state

    def report(self) -> dict[str, Any]:
        waits = self.updates.waited.items()
        longest = sorted(waits, key=lambda name_and_seconds: -name_and_seconds[1])[:MAX_REPORTED]
        return {
            **self.updates.counters,
            "waited": {name: seconds for name, seconds in longest if seconds},
            "unguarded": [self.trained.names[index] for index in sorted(self._unguarded)],
        }

    @property
    def log(self) -> list[UpdateEvent]:
        return self.updates.log

    def close(self) -> None:
        if self._guards is not None:
            self._guards.close()
        self.updates.close()

    def unguard(self, indices: set[int]) -> None:
        """Makes `step` wait for these parameters from now on, because no module does."""
        self._unguarded |= indices
        name = self.trained.names[min(indices)]
        more = f" (and {len(indices) - 1} more)" if len(indices) > 1 else ""
        logger.warning(
            "'%s'%s is read by the forward before its own module runs, so no module waits for it: "
            "step() does from now on.", name, more,
        )  # fmt: skip

    def _submit(self, index: int) -> None:
        """Moves the gradient out of p.grad, where zero_grad could change it, and submits it."""
        if not self._submitted:
            self.updates.begin_step()
        p = self.trained.parameters[index]
        gradient, p.grad = p.grad, None
        if gradient is not None:
            check_dense(self.trained.names[index], gradient)
        self._submitted.add(index)
        self.updates.submit(index, gradient)

    def _wait(self, index: int) -> None:
        """Waits until a parameter is up to date; guards call it."""
        if self.updates.is_pending(index):
            with self._channels.reporting_failures():
                self.updates.wait(index)
