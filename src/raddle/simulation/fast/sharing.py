"""Who holds which part of a parameter, and rows of what is synchronised of it: itself, or its slices."""

# p: parameter, d: device

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from raddle.graph.box import Box
from raddle.graph.graph import Op, Value
from raddle.plans.optimizers import optimizer_costs
from raddle.plans.plan import Plan
from raddle.plans.tiling import Tiling
from raddle.program.parameter_regions import parameter_regions
from raddle.program.program import Message, ParameterRegion, reduced_element_bytes
from raddle.program.sync_instructions import slices_by_worker
from raddle.program.zero3_blocks import pull_messages
from raddle.simulation.fast.machine import Machine
from raddle.simulation.fast.store import NOTHING, Slot, Store
from raddle.simulation.fast.tiled import Reader


class Held(NamedTuple):
    """A parameter on its devices."""

    shares: tuple[ParameterRegion, ...]
    nbytes: Slot  # rows of what it takes of their memory
    whole: Slot  # a row of how it is synchronised in one piece


class Sharing:
    """Parameters of a plan on a machine."""

    def __init__(self, machine: Machine, plan: Plan) -> None:
        self.machine, self.plan, self.sync = machine, plan, plan.syncing
        self.optimizer = optimizer_costs(plan.optimizer)

    def held(self, store: Store, value: Value, users: Sequence[Reader]) -> Held:
        used = [(r.tiled.number, r.operand) for r in users]
        # Steps of a recurrent network read a weight in the same way.
        distinct = dict(zip(used, users, strict=True))
        key = ("held", value.shape, value.dtype.itemsize, *used)
        return store.once(key, lambda: self._held(store, value, list(distinct.values())))

    def _held(self, store: Store, value: Value, users: Sequence[Reader]) -> Held:
        by_device: dict[int, dict[Box, None]] = {}
        for r in users:
            for d, box in zip(r.tiled.tiling.devices, _regions(r), strict=True):
                boxes = by_device.setdefault(d, {})
                if box is not None:
                    boxes.setdefault(box)
        shares = parameter_regions(
            value.shape, {d: list(b) for d, b in by_device.items()}, self.plan
        )
        sizes = np.zeros(self.machine.count, np.int64)
        for s in shares:
            sizes[list(s.devices)] += self.optimizer.held * s.box.volume * value.dtype.itemsize
        some = np.flatnonzero(sizes)
        size = store.sizes.add(np.stack([some, sizes[some]], axis=1))
        if self.sync.sliced:
            return Held(shares, size, NOTHING)
        return Held(shares, size, store.synced.add(np.array([self._row(store, value, shares)])))

    def slices(self, store: Store, value: Value, slices: tuple[ParameterRegion, ...]) -> Slot:
        """Rows of slices in their order, each for all workers or, without a barrier, one by one."""
        key = ("slices", value.dtype.itemsize, slices)

        def find() -> Slot:
            pieces = slices_by_worker(slices, self.sync)
            rows = [self._row(store, value, [piece]) for piece in pieces]
            return store.synced.add(np.array(rows, np.int64).reshape(len(rows), -1))

        return store.once(key, find)

    def _row(self, store: Store, value: Value, shares: Sequence[ParameterRegion]) -> list[int]:
        """How shares are synchronised together (the columns are in arrays.py)."""
        width, machine = value.dtype.itemsize, self.machine
        passes = [self.optimizer.passes * s.box.volume * width for s in shares]
        update = store.computes.add(machine.touch([s.updaters for s in shares], passes))
        shared = [s for s in shares if s.needs_sync]
        own = any(s.server < 0 or s.server in s.devices for s in shares)
        rings, push, pull = (-1, 0), NOTHING, NOTHING
        if self.sync.homes:
            push = self._sent(store, [(d, s.server, s) for s in shared for d in s.devices], width)
            if not self.sync.divided:
                pull = self._sent(
                    store, [(s.server, d, s) for s in shared for d in s.devices], width
                )
        elif shared:
            amounts: dict[tuple[int, ...], int] = {}
            for s in shared:
                amounts[s.devices] = amounts.get(s.devices, 0) + s.box.volume
            volumes = np.array(list(amounts.values()))
            summed = volumes * reduced_element_bytes(self.sync, width)
            row, _ = store.amounts.add(np.stack([summed, volumes * width], axis=1))
            rings = (machine.rings.number(tuple(amounts)), row)
        return [*push, *update, *pull, *rings, int(bool(shared)), int(own)]

    def _sent(
        self, store: Store, ways: Sequence[tuple[int, int, ParameterRegion]], width: int
    ) -> Slot:
        """Messages between servers and holders: one for each pair of devices."""
        volumes: dict[tuple[int, int], int] = {}
        for source, target, share in ways:
            if source != target:
                volumes[source, target] = volumes.get((source, target), 0) + share.box.volume
        sent = [(Message(s, t, ()), n * width) for (s, t), n in volumes.items()]
        return store.messages.add(self.machine.listed(sent, sliced=self.sync.sliced))

    def pulls(
        self, store: Store, value: Value, readers: Sequence[Reader], shares: Sequence[ParameterRegion],
        slices: tuple[ParameterRegion, ...],
    ) -> Slot:  # fmt: skip
        """Rows that bring a divided parameter to operators of a block."""
        width, name = value.dtype.itemsize, value.name
        tiles: Mapping[str, Tiling] = {r.op.name: r.tiled.tiling for r in readers}
        ops: list[Op] = list({r.op.name: r.op for r in readers}.values())

        def find() -> Slot:
            found = pull_messages(ops, tiles, {name: shares}, {name: slices}).get(name, ())
            sent = [(m, m.elements * width) for m in found]
            return store.messages.add(self.machine.listed(sent, sliced=True))

        used = ((r.tiled.number, r.operand) for r in readers)
        return store.once(("pulls", width, slices, *used), find)


def _regions(reader: Reader) -> list[Box | None]:
    """What each tile of a reader needs, copies included."""
    own = reader.tiled.regions[reader.operand]
    lows, highs = own.boxes[:, :, 0].tolist(), own.boxes[:, :, 1].tolist()
    return [
        Box(tuple(lo), tuple(hi)) if needed else None
        for lo, hi, needed in zip(lows, highs, own.needed, strict=True)
        for _ in range(reader.tiled.copies)
    ]
