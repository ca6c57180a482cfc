"""Builds the actions that submit gradients for synchronisation slice by slice.

A slice is a range of rows of a parameter. Its gradients are summed and it is updated separately, or
together with others in a bundle (program/bundle.py), while the rank goes on computing: by a parameter
server, or on all holders after an all-reduce (collective updates). During a run, a synchroniser (package
sync/) does this work. Instructions (program/program.py): Move sends messages, Reduce all-reduces gradients,
Update updates a parameter. A region is a box of a parameter, with the devices that hold it and its server.
The slot table (slot_table.py) has the (box, slot) pairs of each parameter on this device: `persistent` for
the tensors that stay from step to step. Letters: i an instruction, r a region, b a bundle, s a slice.
"""

from __future__ import annotations

from raddle.program.parameter_slices import numbered_slices
from raddle.program.program import Instruction, Move, Program, Reduce, Update
from raddle.runtime.actions import ParameterSlice, StartSliceAllReduce, SubmitGradients
from raddle.runtime.builders.slot_table import SlotTable
from raddle.sync.item import bundle_name


class SliceBuilder:
    """Builds the slice actions of one device."""

    def __init__(self, program: Program, device: int, slot_table: SlotTable) -> None:
        self.program, self.device, self.slot_table = program, device, slot_table
        # Collective updates only: the numbers of all bundles in the order of their all-reduces.
        self.bundle_order: list[int] = []
        # (parameters, regions of the slices) of a bundle -> number of the bundle
        self._numbers = {(b.parameters, b.slices): n for n, b in enumerate(program.bundles)}
        self._submitted: set[str] = set()  # parameters that have a SubmitGradients

    def handles(self, i: Instruction) -> bool:
        """Returns whether the synchroniser carries out this instruction.

        If parameters are sliced, it carries out all their messages, all-reduces and updates.
        """
        if not self.program.slices:
            return False
        if isinstance(i, Move):
            return i.kind.is_of_parameter
        return isinstance(i, Update | Reduce)

    def build(self, i: Instruction) -> list[SubmitGradients | StartSliceAllReduce]:
        """Returns the actions of an instruction that `handles` accepts.

        At the first instruction of a parameter, its gradient is complete: it is submitted with all its
        slices. A bundle has its first instruction when the gradients of all its parameters are complete.
        """
        actions = list[SubmitGradients | StartSliceAllReduce]()
        slots = tuple(slot for name in parameters_of(i) for slot in self._slots_to_submit(name))
        if slots:
            actions.append(SubmitGradients(i.key, slots))
        if self.program.plan.parsed_sync.collective:
            actions += self._start_all_reduce(i)
        return actions

    def _slots_to_submit(self, name: str) -> list[int]:
        """Returns the slots on this device of a parameter; none if they were submitted before."""
        if name in self._submitted:
            return []
        self._submitted.add(name)
        boxes_here = {r.box for r in self.program.regions[name] if self.device in r.devices}
        return [slot for box, slot in self.slot_table.persistent.get(name, []) if box in boxes_here]

    def _start_all_reduce(self, i: Instruction) -> list[StartSliceAllReduce]:
        """Returns the start of a bundle's all-reduce: at its Reduce or, with one holder, at its Update.

        Here each Reduce and each Update is about one bundle.
        """
        if isinstance(i, Update):
            slices = i.regions
            if len(slices[0].devices) > 1:  # already started at its Reduce
                return []
        else:
            assert isinstance(i, Reduce)
            slices = tuple(region for regions in i.regions for region in regions)
        names = parameters_of(i)
        number = self._numbers[names, slices]
        self.bundle_order.append(number)
        return (
            [StartSliceAllReduce(i.key, number, f"reduce {bundle_name(names)}")]
            if self.device in slices[0].devices
            else []
        )

    def all_bundles(self) -> list[tuple[int, ...]]:
        """Returns, for each bundle, the numbers of its slices."""
        numbers = {s: n for n, s in enumerate(numbered_slices(self.program.slices))}
        return [
            tuple(numbers[s] for s in zip(b.parameters, b.slices, strict=True))
            for b in self.program.bundles
        ]

    def all_slices(self) -> list[ParameterSlice]:
        """Returns all slices of the program in the order of their numbers, the same on every rank."""
        program = self.program
        # Parameter -> its place in the order of first use: the smaller, the more urgent.
        priority = program.priority if program.plan.parsed_sync.by_priority else {}
        slices = []
        for name, region in numbered_slices(program.slices):
            # The slot whose tensor contains the slice, and the slice's rows in it; -1: not on this device
            slot, rows = -1, None
            if self.device in (*region.devices, region.server):
                persistent = self.slot_table.persistent[name]
                held_box, slot = next(
                    (box, slot) for box, slot in persistent if box.contains(region.box)
                )
                rows = region.box.slices_within(held_box)[0] if region.box.shape else None
            dtype = program.graph.values[name].dtype
            slices.append(ParameterSlice(name, region, dtype, priority.get(name, 0), slot, rows))
        return slices


def parameters_of(i: Instruction) -> tuple[str, ...]:
    """Returns the parameters that an instruction is about."""
    if isinstance(i, Move):
        return i.values
    return i.parameters if isinstance(i, Update | Reduce) else ()
