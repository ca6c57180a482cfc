"""Checks slices: every gradient reaches its home, is applied once, and is seen by whoever uses it next.

Without homes: it is summed over all holders, and applied once on each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.errors import InputError
from raddle.graph.box import Box, covers, disjoint
from raddle.program.checks.boxes import boxes_by_holder
from raddle.program.checks.refuse import check_waits_for, refuse
from raddle.program.checks.zero3 import check_pulls
from raddle.program.message_kind import MessageKind
from raddle.program.program import Instruction, Move, ParameterRegion, Program, Reduce, Run, Update

Events = Sequence[tuple[int, Instruction]]  # of one step, with their numbers


def check_slices(program: Program, name: str, steps: Sequence[Events]) -> dict[int, list[Box]]:
    """Raises InputError with the reason; the boxes that each device holds."""
    return _SliceReplay(program, name, steps).check()


class _SliceReplay:
    """What happens to the slices of one parameter over the steps of a program."""

    def __init__(self, program: Program, name: str, steps: Sequence[Events]) -> None:
        self.program, self.name, self.steps = program, name, steps
        self.sync = program.plan.parsed_sync
        self.updates: dict[ParameterRegion, list[list[int]]] = {}  # by slice and step

    def check(self) -> dict[int, list[Box]]:
        self._check_servers()
        before: list[int] = []
        passed: set[object] = set()
        for step, events in enumerate(self.steps):
            for n, i in events:
                if isinstance(i, Run) and i.phase == "F":
                    self._check_waits_for(n, before)
            self._index_events(step, events)
            if self.sync.zero3:
                last = {share: updates[-1][0] for share, updates in self.updates.items()}
                self.unclaimed -= check_pulls(self.program, self.name, events, last, passed)
            before = [n for s in self.program.slices[self.name] for n in self._check_slice(s)]
            if self.unclaimed:
                refuse(self.program, min(self.unclaimed), "nothing of the plan asks for it.")
        return boxes_by_holder(self.program.regions[self.name])

    def _check_servers(self) -> None:
        """Slices cut shares; a home holds what it updates, unless it is a server."""
        slices, shares = self.program.slices[self.name], self.program.regions[self.name]
        boxes = [s.box for s in slices]
        full = Box.full(self.program.graph.values[self.name].shape)
        if not disjoint(boxes) or not covers(boxes, full):
            raise InputError(f"the slices of parameter '{self.name}' do not cover {full} once.")
        for s in slices:
            inside = any(
                share.box.contains(s.box) and share.devices == s.devices for share in shares
            )
            allowed_servers = (-1,) if self.sync.collective else (*s.devices, self.sync.server)
            if not inside or s.server not in allowed_servers:
                where = "each" if s.server < 0 else s.server
                raise InputError(
                    f"the holders of parameter '{self.name}' disagree: slice {s.box} is held by "
                    f"{list(s.devices)} and updated on {where}."
                )

    def _index_events(self, step: int, events: Events) -> None:
        """What a step does, by what it is done to."""
        gives = "W" if self.program.plan.split_backward else "B"
        self.step = step
        self.backward = [n for n, i in events if isinstance(i, Run) and i.phase == gives]
        self.instructions: dict[object, list[int]] = {}
        for n, i in events:
            if isinstance(i, Update):
                self.instructions.setdefault((i.regions, i.devices), []).append(n)
            elif isinstance(i, Move):
                pairs = tuple(sorted((m.source, m.target, m.boxes) for m in i.messages))
                self.instructions.setdefault((i.kind.first_alike, pairs), []).append(n)
            elif isinstance(i, Reduce):
                self.instructions.setdefault(
                    ("sum", i.parameters, i.regions, i.devices), []
                ).append(n)
        self.unclaimed = {n for numbers in self.instructions.values() for n in numbers}

    def _check_slice(self, slice_: ParameterRegion) -> list[int]:
        """Checks a slice in a step; what writes it: updates, and what brings them to others."""
        if slice_.server < 0:
            return [self._check_collective_update(slice_)]
        writers, updates = [], []
        earlier = self.updates.setdefault(slice_, [])
        workers = [slice_.devices] if self.sync.synchronous else [(d,) for d in slice_.devices]
        bound = self.sync.staleness
        stale = (
            earlier[len(earlier) - bound] if bound is not None and 0 < bound <= len(earlier) else []
        )
        for devices in workers:
            worker_slice = slice_._replace(devices=devices)
            update = self._check_update(worker_slice)
            updates.append(update)
            writers.append(update)
            others = [d for d in devices if d != slice_.server]
            if others and not self.sync.zero3:
                pull = self._one_move(
                    MessageKind.PULL, slice_.box, [(slice_.server, d) for d in others]
                )
                self._check_waits_for(pull, [update, *stale])
                writers.append(pull)
        earlier.append(updates)
        return [*writers, *stale]

    def _check_collective_update(self, slice_: ParameterRegion) -> int:
        number = self._one_instruction(
            ((slice_,), slice_.devices), "its update on all holders", slice_.box
        )
        ready = self.backward
        if len(slice_.devices) > 1:
            wanted = ("sum", (self.name,), ((slice_,),), slice_.devices)
            total = self._one_instruction(
                wanted, f"its sum over {list(slice_.devices)}", slice_.box
            )
            self._check_waits_for(total, self.backward)
            ready = [total]
        self._check_waits_for(number, ready)
        return number

    def _check_update(self, slice_: ParameterRegion) -> int:
        number = self._one_instruction(
            ((slice_,), (slice_.server,)), f"its update for {list(slice_.devices)}", slice_.box
        )
        if slice_.server in slice_.devices:
            self._check_waits_for(number, self.backward)
        pairs = [(d, slice_.server) for d in slice_.devices if d != slice_.server]
        if pairs:
            push = self._one_move(MessageKind.PUSH, slice_.box, pairs)
            self._check_waits_for(push, self.backward)
            self._check_waits_for(number, [push])
        return number

    def _one_move(self, kind: MessageKind, box: Box, pairs: Sequence[tuple[int, int]]) -> int:
        wanted = tuple(sorted((source, target, (box,)) for source, target in pairs))
        return self._one_instruction((kind, wanted), f"its {kind} by {sorted(pairs)}", box)

    def _one_instruction(self, wanted: object, what: str, box: Box) -> int:
        numbers = self.instructions.get(wanted, [])
        if len(numbers) != 1:
            raise InputError(
                f"slice {box} of parameter '{self.name}' has {what} {len(numbers)} times in step "
                f"{self.step}, not once."
            )
        self.unclaimed.discard(numbers[0])
        return numbers[0]

    def _check_waits_for(self, number: int, others: Iterable[int]) -> None:
        check_waits_for(self.program, number, others)
