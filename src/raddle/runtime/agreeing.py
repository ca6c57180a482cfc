"""The parameters of a rank in slices: gradients are handed in, updated rows come back.

Homes update a slice as soon as its gradients are there, beside what this rank computes. Without homes
(`p3:collective`) gradients are summed in the program's order, and this rank updates its copy of a slice
when a forward asks for it. Where an update needs all gradients (a global norm, a loss that must be finite,
an optimizer that looks at more than one element), it waits for them instead: `barrier` says why.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from raddle.errors import InputError
from raddle.graph.dtypes import settled
from raddle.plans.sync import Sync
from raddle.runtime.actions import Sliced
from raddle.runtime.settling.pieces import Source
from raddle.sync.applying import Applying, needs_barrier
from raddle.sync.item import Item
from raddle.sync.summing import Summing
from raddle.sync.synchroniser import Synchroniser
from raddle.transport.base import Transport
from raddle.transport.exchange import exchange_over

# Is told of a slice, of its step (from 1 on) and of the gradient of its update.
Heard = Callable[[Source, int, Tensor], None]
logger = logging.getLogger("raddle.sync")


class Agreeing:
    """One rank's slices. `slots` hold its parameters; `start` comes when the optimizer is made."""

    def __init__(
        self, slices: Sequence[Sliced], slots: Sequence[Tensor], transport: Transport, sync: Sync,
        place: torch.device, order: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.slices, self.sync, self.transport, self.order = slices, sync, transport, order
        self._slots, self._slots_place = slots, place
        self.heard: Heard | None = None  # is told of every update
        self.barrier = ""
        self.clock = 0  # updates that this rank has taken part in
        self._due: dict[int, tuple[int, ...]] = {}  # slots that are under way, with their items
        self._kept: dict[int, Tensor] = {}  # gradients of slots, until all their slices have left
        self._rows: dict[int, nn.Parameter] = {}  # by item, where it is updated here
        self._sources: dict[int, Source] = {}
        self._given: dict[int, list[int]] = {}  # by slot, the items that this rank gives
        rank = transport.rank
        for number, s in enumerate(slices):
            if rank in s.share.devices:
                self._given.setdefault(s.slot, []).append(number)
            if rank == s.share.home or (sync.collective and rank in s.share.devices):
                self._rows[number] = self._at_home(s)
                self._sources[number] = Source(s.name, "parameter", s.share.box, s.slot)
        self.synchroniser: Synchroniser | Summing | None = None

    def _at_home(self, s: Sliced) -> nn.Parameter:
        """What a home updates."""
        if self.sync.divided:
            parameter: nn.Parameter = self._slots[s.own]  # type: ignore[assignment]
            return parameter
        rows = self._cut(self._slots[s.slot], s)
        # Where others' updates come while this rank computes, a copy takes them.
        return nn.Parameter(rows if self.sync.synchronous else rows.clone())

    def _bound(self, number: int, s: Sliced) -> Tensor | None:
        """What updated rows are written into; of divided parameters they stay at home."""
        if not self.sync.divided:
            return self._cut(self._slots[s.slot], s)
        return self._rows[number].detach() if number in self._rows else None

    @staticmethod
    def _cut(tensor: Tensor, s: Sliced) -> Tensor:
        rows = tensor.detach()
        return rows[s.rows] if rows.ndim else rows

    @property
    def updated(self) -> list[tuple[Source, nn.Parameter]]:
        """The slices that are updated here: what the optimizer is made of."""
        return [(self._sources[n], p) for n, p in self._rows.items()]

    def start(self, optimizer: Optimizer | None, barrier: str = "") -> None:
        """`barrier`: why updates have to wait for all gradients; the optimizer may be another reason."""
        self._optimizer = optimizer
        made = optimizer if self._rows else None
        own = barrier or (needs_barrier(made) if made is not None else None) or ""
        self.barrier = self._agreed(own) if self.sync.synchronous else ""
        if own and not self.sync.synchronous:
            raise InputError(
                f"{own.rstrip('.')}, which an asynchronous server does not do: use ps."
            )
        if self.barrier:
            logger.info("updates wait for all gradients: %s", self.barrier)
        items = [self._item(n, s) for n, s in enumerate(self.slices)]
        self.synchroniser = self._summing(items) if self.sync.collective else self._homes(items)
        self.transport.on_failure(self.synchroniser.stop)
        times = {n: len(self.slices[n].share.devices) for n in self._rows}
        self._applying: Applying | None = None
        if made is not None and not self.barrier:
            self._applying = Applying(
                made,
                self._rows,
                times=None if self.sync.synchronous else times,
            )
            self._applying.snapshot(1)
        self.synchroniser.start()
        self.transport.barrier()  # nobody pushes before all listen

    def _summing(self, items: Sequence[Item]) -> Summing:
        return Summing(
            items, self.order, self.transport, self._apply, self._exchange,
            debug=os.environ.get("RADDLE_SYNC_DEBUG", "") not in ("", "0"),
        )  # fmt: skip

    def _homes(self, items: Sequence[Item]) -> Synchroniser:
        waits = self.sync.server is not None and self.sync.synchronous and not self.barrier
        made = Synchroniser(
            items, self.transport.wire(), self._apply, staleness=self.sync.staleness,
            barrier=bool(self.barrier), timeout=self.transport.timeout,
            admitted=0 if waits else None, fail=self.transport.fail,
        )  # fmt: skip
        rank = self.transport.rank
        for number, s in enumerate(self.slices):
            if rank in (*s.share.devices, s.share.home):
                copied = None if self.sync.synchronous else self._rows.get(number)
                master = None if copied is None else copied.detach()
                made.bind(number, self._bound(number, s), master)
        return made

    def _exchange(self, mine: object) -> list[object]:
        return exchange_over(self.transport, self._slots_place, mine)

    def _agreed(self, reason: str) -> str:
        """Ranks without slices cannot know why others wait: the first who does says so."""
        return next((str(r) for r in self._exchange(reason) if r), "")

    def _item(self, number: int, s: Sliced) -> Item:
        rows = f"[{s.share.box.lo[0]}:{s.share.box.hi[0]}]" if s.share.box.shape else ""
        share = s.share
        return Item(
            number, s.name + rows, share.devices, share.home, share.box.volume, s.dtype, s.priority,
            returned=not self.sync.divided,
        )  # fmt: skip

    def _apply(self, number: int, clock: int, gradient: Tensor) -> None:
        assert self._applying is not None
        if self.heard is not None:
            rows = self._rows[number]
            self.heard(self._sources[number], clock, gradient.view_as(rows))
        self._applying(number, clock, gradient)

    # -- a step ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A step that updates begins: its updates have the optimizer's settings of now."""
        self.clock += 1
        if self._optimizer is not None:
            self._optimizer._opt_called = True  # type: ignore[attr-defined]  # or schedulers warn
        if self._applying is not None:
            self._applying.snapshot(self.clock)
        assert self.synchroniser is not None
        self.synchroniser.admit(self.clock)

    def give(self, slot: int, gradient: Tensor) -> None:
        """Hands in the gradient of what a slot holds; it is not written any more."""
        assert self.synchroniser is not None
        items = self._given[slot]
        self._due[slot] = tuple(items)
        if self.sync.collective:  # sums are in place, and this may be seen by others
            self._kept[slot] = gradient.detach().clone(memory_format=torch.contiguous_format)
            return
        gradient = settled(gradient.detach()).contiguous()
        for number in items:
            self.synchroniser.ready(number, self._cut(gradient, self.slices[number]))

    def leave(self, number: int) -> None:
        """It is a slice's turn to be summed."""
        assert self.synchroniser is not None
        own = self.slices[number]
        self.synchroniser.ready(number, self._cut(self._kept[own.slot], own))

    def wait(self, slots: Sequence[int]) -> None:
        """Until the parameters in these slots are up to date."""
        if not self._due:
            return
        assert self.synchroniser is not None
        for slot in slots:
            for number in self._due.pop(slot, ()):
                self.synchroniser.wait(number)

    def finish(self, update: Callable[[], None]) -> None:
        """The end of a step: whatever cannot wait for its next use is done now."""
        assert self.synchroniser is not None
        self._kept.clear()  # slices that are under way keep what they need of it
        self.synchroniser.finish()
        if self.barrier:
            for number, gradient in self.synchroniser.sums().items():
                self._rows[number].grad = gradient.view_as(self._rows[number])
            update()
            for rows in self._rows.values():
                rows.grad = None
            self.synchroniser.publish()
        if not self.sync.urgent:
            self.wait(list(self._due))

    def synchronize(self) -> None:
        """All parameters are up to date, and nothing is under way; all ranks call it."""
        if self.synchroniser is not None:
            self.wait(list(self._due))
            self.synchroniser.synchronize()
            # A server that is no worker has nothing else to wait for; and where servers apply gradients as
            # they come, a rank that is behind may still send some to this one.
            if self.sync.server is not None or not self.sync.synchronous:
                self.transport.barrier()

    def refresh(self) -> None:
        """Homes that update copies take what the slots hold now."""
        if not self.sync.synchronous:
            with torch.no_grad():
                for number, rows in self._rows.items():
                    own = self.slices[number]
                    rows.copy_(self._cut(self._slots[own.slot], own))

    def close(self) -> None:
        if self.synchroniser is not None:
            self.synchroniser.close()

    def flush(self, seconds: float) -> None:
        """At the end: waits, but not long, until nothing of this rank or of its homes is under way.

        A rank that ends because of an error must not wait for others that wait for it.
        """
        if self.synchroniser is not None:
            self.synchroniser.drain(seconds, self.clock)
