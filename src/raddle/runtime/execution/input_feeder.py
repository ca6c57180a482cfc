"""Carries out Feed: puts this rank's parts of the batch, and seeds of random numbers, into their slots.

A slot is a numbered place for a tensor (actions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from raddle.plans.precision import FLOAT32, Precision
from raddle.program.program import Key
from raddle.runtime.actions import Feed
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.execution.store import Store

ReadInput = Callable[[SlotSource], Tensor]  # returns the part of the batch for an input slot


class InputFeeder:
    """Fills the slots of inputs and seeds.

    feeds: all Feed actions of the rank. A SlotSource says which box of which input, or which seed, belongs
    in which slot; its role is "input" or "seed" here. store: the tensors by slot; seed: of the whole run;
    precision: of the plan; with "bf16:pure", inputs are cast too.
    On the CPU, parts of the batch are views and cost nothing, so all slots are filled at the start of a
    run. On a GPU, each part is copied to the device only before its first use.
    """

    def __init__(
        self, feeds: Iterable[Feed], store: Store, seed: int = 0, precision: Precision = FLOAT32
    ) -> None:
        self.store, self.seed, self.precision = store, seed, precision
        self.fills_at_start = store.place.type == "cpu"
        self._feeds = list(feeds) if self.fills_at_start else []
        self._read_input: ReadInput = lambda source: torch.empty(0)
        self._step = 0

    def begin(self, read_input: ReadInput, step: int) -> None:
        """Starts a run (one step, or all overlapping steps); step: the number of its first step."""
        self._read_input, self._step = read_input, step
        for action in self._feeds:
            self._fill(action)

    def feed(self, action: Feed) -> None:
        """Fills the slot of an action now, unless `begin` has done so."""
        if not self.fills_at_start:
            self._fill(action)

    def seed_of(self, key: Key) -> int:
        """Returns the seed of a micro-batch. key: its step within the run, and its number.

        The factor is larger than any number of micro-batches, so all micro-batches have different seeds.
        """
        return self.seed + 1_000_003 * (self._step + key.step) + key.micro_batch

    def _fill(self, action: Feed) -> None:
        """Fills a slot with a part of the batch, or with the seed of a micro-batch."""
        source = action.source
        if source.role == "input":
            tensor = self._read_input(source)
            tensor = tensor.to(self.precision.parameter_dtype(tensor.dtype))
        else:
            number = self.seed_of(action.key)
            # torch.full writes on the device itself; torch.tensor would copy, and wait for the copy.
            tensor = torch.full((), number, dtype=torch.int64, device=self.store.place)
        self.store.slots[source.slot] = tensor
