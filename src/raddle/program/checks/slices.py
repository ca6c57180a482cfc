"""Checks slices: every gradient reaches its home, is applied once, and is seen by whoever uses it next.

Without homes: it is summed over all holders, and applied once on each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.errors import InputError
from raddle.graph.box import Box, covers, disjoint
from raddle.program.checks.boxes import held_by
from raddle.program.checks.refuse import check_waits_for, refuse
from raddle.program.checks.zero3 import check_pulls
from raddle.program.message_kind import MessageKind
from raddle.program.program import Instruction, Move, ParameterRegion, Program, Reduce, Run, Update

Events = Sequence[tuple[int, Instruction]]  # of one step, with their numbers


def check_slices(program: Program, name: str, steps: Sequence[Events]) -> dict[int, list[Box]]:
    """Raises InputError with the reason; the boxes that each device holds."""
    return _Slices(program, name, steps).check()


class _Slices:
    """What happens to the slices of one parameter over the steps of a program."""

    def __init__(self, program: Program, name: str, steps: Sequence[Events]) -> None:
        self.program, self.name, self.steps = program, name, steps
        self.sync = program.plan.syncing
        self.updates: dict[ParameterRegion, list[list[int]]] = {}  # by slice and step

    def check(self) -> dict[int, list[Box]]:
        self._check_homes()
        before: list[int] = []
        passed: set[object] = set()
        for step, events in enumerate(self.steps):
            for n, i in events:
                if isinstance(i, Run) and i.phase == "F":
                    self._waits(n, before)
            self._sort(step, events)
            if self.sync.divided:
                last = {share: own[-1][0] for share, own in self.updates.items()}
                self.left -= check_pulls(self.program, self.name, events, last, passed)
            before = [n for s in self.program.slices[self.name] for n in self._serve(s)]
            if self.left:
                refuse(self.program, min(self.left), "nothing of the plan asks for it.")
        return held_by(self.program.regions[self.name])

    def _check_homes(self) -> None:
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
            homes = (-1,) if self.sync.collective else (*s.devices, self.sync.server)
            if not inside or s.server not in homes:
                where = "each" if s.server < 0 else s.server
                raise InputError(
                    f"the holders of parameter '{self.name}' disagree: slice {s.box} is held by "
                    f"{list(s.devices)} and updated on {where}."
                )

    def _sort(self, step: int, events: Events) -> None:
        """What a step does, by what it is done to."""
        gives = "W" if self.program.plan.split_backward else "B"
        self.step = step
        self.backward = [n for n, i in events if isinstance(i, Run) and i.phase == gives]
        self.found: dict[object, list[int]] = {}
        for n, i in events:
            if isinstance(i, Update):
                self.found.setdefault((i.regions, i.devices), []).append(n)
            elif isinstance(i, Move):
                ways = tuple(sorted((m.source, m.target, m.boxes) for m in i.messages))
                self.found.setdefault((i.kind.first_alike, ways), []).append(n)
            elif isinstance(i, Reduce):
                self.found.setdefault(("sum", i.parameters, i.regions, i.devices), []).append(n)
        self.left = {n for own in self.found.values() for n in own}

    def _serve(self, share: ParameterRegion) -> list[int]:
        """Checks a slice in a step; what writes it: updates, and what brings them to others."""
        if share.server < 0:
            return [self._update_everywhere(share)]
        written, now = [], []
        alone = self.updates.setdefault(share, [])
        workers = [share.devices] if self.sync.synchronous else [(d,) for d in share.devices]
        bound = self.sync.staleness
        late = alone[len(alone) - bound] if bound is not None and 0 < bound <= len(alone) else []
        for devices in workers:
            own = share._replace(devices=devices)
            done = self._update(own)
            now.append(done)
            written.append(done)
            others = [d for d in devices if d != share.server]
            if others and not self.sync.divided:
                pull = self._only(MessageKind.PULL, share.box, [(share.server, d) for d in others])
                self._waits(pull, [done, *late])
                written.append(pull)
        alone.append(now)
        return [*written, *late]

    def _update_everywhere(self, share: ParameterRegion) -> int:
        number = self._one(((share,), share.devices), "its update on all holders", share.box)
        ready = self.backward
        if len(share.devices) > 1:
            wanted = ("sum", (self.name,), ((share,),), share.devices)
            total = self._one(wanted, f"its sum over {list(share.devices)}", share.box)
            self._waits(total, self.backward)
            ready = [total]
        self._waits(number, ready)
        return number

    def _update(self, share: ParameterRegion) -> int:
        number = self._one(
            ((share,), (share.server,)), f"its update for {list(share.devices)}", share.box
        )
        if share.server in share.devices:
            self._waits(number, self.backward)
        ways = [(d, share.server) for d in share.devices if d != share.server]
        if ways:
            push = self._only(MessageKind.PUSH, share.box, ways)
            self._waits(push, self.backward)
            self._waits(number, [push])
        return number

    def _only(self, what: MessageKind, box: Box, ways: Sequence[tuple[int, int]]) -> int:
        wanted = tuple(sorted((source, target, (box,)) for source, target in ways))
        return self._one((what, wanted), f"its {what} by {sorted(ways)}", box)

    def _one(self, wanted: object, what: str, box: Box) -> int:
        found = self.found.get(wanted, [])
        if len(found) != 1:
            raise InputError(
                f"slice {box} of parameter '{self.name}' has {what} {len(found)} times in step "
                f"{self.step}, not once."
            )
        self.left.discard(found[0])
        return found[0]

    def _waits(self, number: int, on: Iterable[int]) -> None:
        check_waits_for(self.program, number, on)
