"""Parameters of a plan that changes: who holds them now, their slices, and what they point to."""

# p: parameter

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.graph.graph import Value
from raddle.plans.plan import Plan
from raddle.program.parameter_slices import cut_slices
from raddle.program.program import ParameterRegion
from raddle.simulation.fast.machine import Machine
from raddle.simulation.fast.outline import Outline
from raddle.simulation.fast.pointers import Pointers, Undo
from raddle.simulation.fast.sharing import Sharing
from raddle.simulation.fast.store import Store
from raddle.simulation.fast.tiled import Reader, Tiled


class Syncing:
    """Where slices have servers, which one a slice has depends on all others."""

    def __init__(self, outline: Outline, machine: Machine, plan: Plan, pointers: Pointers) -> None:
        self.outline, self.pointers, self.sync = outline, pointers, plan.syncing
        self.sharing = Sharing(machine, plan)
        self.names = list(outline.parameter)
        self.shares: list[tuple[ParameterRegion, ...]] = [() for _ in self.names]
        self.slices: list[tuple[ParameterRegion, ...]] = [() for _ in self.names]
        self.pulls_of: dict[str, list[int]] = {}  # by operator, what it may need pulled
        for number, (_, ops) in enumerate(outline.pulls):
            for op in ops:
                self.pulls_of.setdefault(op.name, []).append(number)

    def change(
        self, undo: Undo, store: Store, changed: Iterable[int], tiles: Sequence[Tiled]
    ) -> None:
        """Some operators have other tiles."""
        o, ops = self.outline, self.outline.graph.ops
        changed = list(changed)
        again = {o.parameter[n] for i in changed for n in ops[i].inputs if n in o.parameter}
        for p in again:
            self._hold(undo, store, p, tiles)
        if not self.sync.sliced or not again:
            return
        pulls = {n for i in changed for n in self.pulls_of.get(ops[i].name, ())}
        moved = self._slice(undo, store)
        pulls |= {n for n, (name, _) in enumerate(o.pulls) if name in moved}
        for number in pulls:
            self._pull(undo, store, number, tiles)

    def _value(self, p: int) -> Value:
        return self.outline.graph.values[self.names[p]]

    def _hold(self, undo: Undo, store: Store, p: int, tiles: Sequence[Tiled]) -> None:
        o, to = self.outline, self.pointers
        users = [Reader(op, k, True, tiles[o.number[op.name]]) for op, k in o.users[p]]
        held = self.sharing.held(store, self._value(p), users)
        to.point(undo, store, to.held_slots, len(o.number) + p, held.nbytes, store.sizes)
        if held.shares is not self.shares[p]:
            undo.set(self.shares, p, held.shares)
        if o.tape.graded[p] and not self.sync.sliced:
            to.point(undo, store, to.slots.synced, p, held.whole, store.synced)

    def _slice(self, undo: Undo, store: Store) -> set[str]:
        """Cuts all parameters anew; the names of those whose slices are others now."""
        o, to, moved = self.outline, self.pointers, set[str]()
        found = cut_slices(
            {n: self.shares[o.parameter[n]] for n in o.trained}, o.trained, self.sync
        )
        for name, slices in found.items():
            p = o.parameter[name]
            if slices != self.slices[p]:
                moved.add(name)
                undo.set(self.slices, p, slices)
                slot = self.sharing.slices(store, self._value(p), slices)
                to.point(undo, store, to.slots.synced, p, slot, store.synced)
        return moved

    def _pull(self, undo: Undo, store: Store, number: int, tiles: Sequence[Tiled]) -> None:
        o, to = self.outline, self.pointers
        name, ops = o.pulls[number]
        p, own = o.parameter[name], {op.name for op in ops}
        readers = [
            Reader(op, k, True, tiles[o.number[op.name]]) for op, k in o.users[p] if op.name in own
        ]
        slot = self.sharing.pulls(store, self._value(p), readers, self.shares[p], self.slices[p])
        to.point(undo, store, to.slots.pulled, number, slot, store.messages)

    def forget(self) -> None:
        """Nothing is held, and nothing pointed to."""
        self.shares = [() for _ in self.names]
        self.slices = [() for _ in self.names]
