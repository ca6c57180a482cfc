"""Gradients leave p.grad as soon as they are complete, slice by slice, and come back as updated rows."""

from __future__ import annotations

from typing import Any

from raddle.sync.channels import Channels
from raddle.sync.forward_guards import Guards
from raddle.sync.gradient_buckets import check_dense
from raddle.sync.item import UpdateEvent
from raddle.sync.mechanism import Arrivals, Mechanism
from raddle.sync.server_stalls import logger
from raddle.sync.sliced_updates import SlicedUpdates
from raddle.sync.sync_settings import SyncSettings
from raddle.sync.trained_parameters import TrainedParameters

WORST = 5  # parameters that a report names


class Sliced(Mechanism):
    """`guards`: modules wait for their parameters before they compute; None: `step` waits for all."""

    def __init__(
        self, trained: TrainedParameters, lines: Channels, settings: SyncSettings, homing: SlicedUpdates, guards: Guards | None
    ) -> None:  # fmt: skip
        super().__init__(trained)
        self.homing, self._lines, self._text = homing, lines, settings.sync_text
        self._arrivals = Arrivals(lines.rank, trained.names, settings.backward_passes)
        self._handed: set[int] = set()
        self._unguarded: set[int] = set()  # parameters that no module waits for
        self._guards = guards
        if guards is not None:
            guards.wait = self._wait

    def arrived(self, index: int) -> None:
        if self._arrivals.add(index):
            guarded = self._guards is not None and index not in self._unguarded
            if guarded and self.homing.is_pending(index):  # read by the forward without waiting
                self.unguard({index})
            self._give(index)

    def zeroed(self) -> None:
        """What has been handed in is not touched: it is not in p.grad any more."""
        if not self._handed:
            self._arrivals.counts.clear()

    def step(self) -> None:
        name = self.homing.sliced_optimizer.changed_setting() if self._handed else ""
        if name:
            raise RuntimeError(
                f"'{name}' was changed between backward and step, and sync '{self._text}' updates during "
                "the backward: change it before, or wrap with barrier=True"
            )
        everything = range(len(self.trained.parameters))
        for index in everything:
            if index not in self._handed:
                self._give(index)
        self.homing.finish_step()
        self._handed.clear()
        self._arrivals.counts.clear()
        for index in everything if self._guards is None else sorted(self._unguarded):
            self.homing.wait(index)

    def average(self, reason: str) -> None:
        raise RuntimeError(
            f"{reason}, and with sync '{self._text}' those of this step have left already: "
            "wrap with barrier=True"
        )

    def synchronize(self) -> None:
        self.homing.synchronize()

    def settle(self) -> None:
        self.homing.synchronize_ranks()

    def state_dict(self) -> dict[str, Any]:
        state = self.trained.optimizer.state
        state.update(self.homing.gather_state())
        try:
            return super().state_dict()
        finally:
            state.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.homing.synchronize_ranks()
        super().load_state_dict(state_dict)
        self.homing.sliced_optimizer.scatter_state()
        self._lines.cpu_transport.barrier()  # nobody pushes before all homes have it

    def report(self) -> dict[str, Any]:
        worst = sorted(self.homing.waited.items(), key=lambda w: -w[1])[:WORST]
        return {
            **self.homing.counters,
            "waited": {name: seconds for name, seconds in worst if seconds},
            "unguarded": [self.trained.names[index] for index in sorted(self._unguarded)],
        }

    @property
    def log(self) -> list[UpdateEvent]:
        return self.homing.log

    def close(self) -> None:
        if self._guards is not None:
            self._guards.close()
        self.homing.close()

    def unguard(self, indices: set[int]) -> None:
        """From now on `step` waits for these, as no module does."""
        self._unguarded |= indices
        name = self.trained.names[min(indices)]
        more = f" (and {len(indices) - 1} more)" if len(indices) > 1 else ""
        logger.warning(
            "'%s'%s is read by the forward before its own module runs, so no module waits for it: "
            "step() does from now on.", name, more,
        )  # fmt: skip

    def _give(self, index: int) -> None:
        """The gradient is ours from now on: zero_grad cannot reach what is still to be sent."""
        if not self._handed:
            self.homing.begin_step()
        p = self.trained.parameters[index]
        gradient, p.grad = p.grad, None
        if gradient is not None:
            check_dense(self.trained.names[index], gradient)
        self._handed.add(index)
        self.homing.submit(index, gradient)

    def _wait(self, index: int) -> None:
        if self.homing.is_pending(index):
            with self._lines.reporting_failures():
                self.homing.wait(index)
