"""Slices of parameters, which a synchroniser sums and updates beside what a rank computes."""

from __future__ import annotations

from raddle.program.parameter_slices import numbered_slices
from raddle.program.program import Instruction, Move, Program, Reduce, Update
from raddle.runtime.actions import ParameterSlice, StartSliceAllReduce, SubmitGradients
from raddle.runtime.builders.persistent import is_divided
from raddle.runtime.builders.slot_table import Pieces
from raddle.runtime.delivery import delivery_of


class Slices:
    """What one device hands in and when; `order` is that of slices without homes as their sums leave."""

    def __init__(self, program: Program, device: int, pieces: Pieces) -> None:
        self.program, self.device, self.pieces = program, device, pieces
        self.order: list[int] = []
        self._divided = is_divided(program)
        self._numbers = {own: n for n, own in enumerate(numbered_slices(program.slices))}
        self._given: set[str] = set()  # parameters whose gradients are handed in

    def concerns(self, i: Instruction) -> bool:
        """Whether a synchroniser does it: all of slices, but for rows that are pulled before a use."""
        if not self.program.slices:
            return False
        if isinstance(i, Move):
            return i.kind.is_of_parameter and not delivery_of(i.kind, divided=self._divided).gathers
        return isinstance(i, Update | Reduce)

    def give(self, i: Instruction) -> list[SubmitGradients | StartSliceAllReduce]:
        """A parameter's gradient is complete: all its slices on this device are handed in."""
        name, found = _parameter(i), list[SubmitGradients | StartSliceAllReduce]()
        if name not in self._given:
            self._given.add(name)
            held = {s.box for s in self.program.regions[name] if self.device in s.devices}
            slots = tuple(s for box, s in self.pieces.lasting.get(name, []) if box in held)
            if slots:
                found.append(SubmitGradients(i.key, slots))
        if self.program.plan.syncing.collective:
            found += self._leave(name, i)
        return found

    def _leave(self, name: str, i: Instruction) -> list[StartSliceAllReduce]:
        """A slice is summed where the program has it, or, held by one device alone, updated."""
        if isinstance(i, Update):
            share = i.regions[0]
            if len(share.devices) > 1:  # comes after its sum
                return []
        else:
            assert isinstance(i, Reduce)
            share = i.regions[0][0]
        number = self._numbers[name, share]
        self.order.append(number)
        return (
            [StartSliceAllReduce(i.key, number, f"reduce {name}")]
            if self.device in share.devices
            else []
        )

    def all(self) -> list[ParameterSlice]:
        """All slices of the program, numbered alike on every rank."""
        program = self.program
        priority = program.priority if program.plan.syncing.urgent else {}
        found = []
        for name, share in numbered_slices(program.slices):
            slot, rows = -1, None
            if self.device in (*share.devices, share.server):
                lasting = self.pieces.lasting[name]
                held, slot = next((b, s) for b, s in lasting if b.holds(share.box))
                rows = share.box.within(held)[0] if share.box.shape else None
            own = next((s for b, s in self.pieces.rows.get(name, []) if b == share.box), -1)
            dtype = program.graph.values[name].dtype
            found.append(ParameterSlice(name, share, dtype, priority.get(name, 0), slot, rows, own))
        return found


def _parameter(i: Instruction) -> str:
    """Whose slice it is about."""
    if isinstance(i, Update):
        return i.parameter
    return i.parameters[0] if isinstance(i, Reduce) else i.value if isinstance(i, Move) else ""
