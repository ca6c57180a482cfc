"""Checks the synchronisation of slices, where the sync kind works slice by slice.

In every step, each slice is pushed to its server, updated there once, and pulled by its holders before they
use it; or, without servers, all-reduced over its holders and updated once on each. A docstring of a check
says what must hold; the check raises InputError if it does not.

A slice is a ParameterRegion: a box of a parameter, the devices that hold it, and its server; -1: none.
Slices of a bundle (bundle.py) share these instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.errors import InputError
from raddle.graph.box import Box, covers, disjoint
from raddle.program.bundle import Bundle
from raddle.program.checks.boxes import boxes_by_holder
from raddle.program.checks.refuse import check_waits_for, refuse
from raddle.program.message_kind import MessageKind
from raddle.program.program import Instruction, Move, Program, Reduce, Run, Update

# n: number of an instruction, i: the instruction, d: device, s: slice, b: bundle

# The instructions about a parameter in one step, with their numbers.
Events = Sequence[tuple[int, Instruction]]


def check_slices(program: Program, name: str, steps: Sequence[Events]) -> dict[int, list[Box]]:
    """Checks the slices of a parameter. Raises InputError, or returns the boxes that each device holds."""
    return _SliceReplay(program, name, steps).check()


class _SliceReplay:
    """Replays the slices of one parameter over the steps of a program, one step after the other."""

    def __init__(self, program: Program, name: str, steps: Sequence[Events]) -> None:
        self.program, self.name, self.steps = program, name, steps
        self.sync = program.plan.parsed_sync
        self.bundles = program.bundles_of[name]
        self.updates: dict[Bundle, list[list[int]]] = {}  # by bundle and step, instruction numbers

    def check(self) -> dict[int, list[Box]]:
        """Checks all steps; returns the boxes that each device holds."""
        self._check_servers()
        self._check_bundles()
        before: list[int] = []  # updates and pulls of the step before, which a forward waits for
        for step, events in enumerate(self.steps):
            for n, i in events:
                if isinstance(i, Run) and i.phase == "F":
                    self._check_waits_for(n, before)
            self._index_events(step, events)
            before = [n for b in self.bundles for n in self._check_bundle(b)]
            if self.unclaimed:
                refuse(self.program, min(self.unclaimed), "nothing of the plan asks for it.")
        return boxes_by_holder(self.program.regions[self.name])

    def _check_servers(self) -> None:
        """Checks that slices cover the parameter, lie inside its regions, and have an allowed server."""
        slices, regions = self.program.slices[self.name], self.program.regions[self.name]
        boxes = [s.box for s in slices]
        full = Box.full(self.program.graph.values[self.name].shape)
        if not disjoint(boxes) or not covers(boxes, full):
            raise InputError(f"the slices of parameter '{self.name}' do not cover {full} once.")
        for s in slices:
            inside = any(
                region.box.contains(s.box) and region.devices == s.devices for region in regions
            )
            allowed_servers = (-1,) if self.sync.collective else (*s.devices, self.sync.server)
            if not inside or s.server not in allowed_servers:
                where = "each" if s.server < 0 else s.server
                raise InputError(
                    f"the holders of parameter '{self.name}' disagree: slice {s.box} is held by "
                    f"{list(s.devices)} and updated on {where}, but no region has these holders and server."
                )

    def _check_bundles(self) -> None:
        """Checks that each slice is in one bundle, whose slices have the same holders, server and dtype."""
        values = self.program.graph.values
        bundled = [
            s
            for b in self.bundles
            for n, s in zip(b.parameters, b.slices, strict=True)
            if n == self.name
        ]
        if sorted(bundled) != sorted(self.program.slices[self.name]):
            raise InputError(f"the bundles do not have each slice of parameter '{self.name}' once.")
        for b in self.bundles:
            kinds = {
                (s.devices, s.server, values[n].dtype)
                for n, s in zip(b.parameters, b.slices, strict=True)
            }
            if len(kinds) > 1:
                raise InputError(
                    f"parameter '{self.name}' is in a bundle whose slices have other holders, servers or "
                    "dtypes."
                )

    def _index_events(self, step: int, events: Events) -> None:
        """Indexes the instructions of a step by what they do, so that each can be looked up.

        The keys: of an update, its parameters, slices and devices; of a move, its kind, its parameters and
        (source, target, boxes) of each message; of an all-reduce, "sum", parameters, slices and devices.
        `unclaimed` are the instructions that no check has looked up; such an instruction is refused.
        """
        # The phase that gives gradients of parameters.
        gradient_phase = "W" if self.program.plan.split_backward else "B"
        self.step = step
        self.backward = [n for n, i in events if isinstance(i, Run) and i.phase == gradient_phase]
        self.instructions: dict[object, list[int]] = {}
        for n, i in events:
            if isinstance(i, Update):
                self.instructions.setdefault((i.parameters, i.regions, i.devices), []).append(n)
            elif isinstance(i, Move):
                pairs = tuple(sorted((m.source, m.target, m.boxes) for m in i.messages))
                # Kinds that send the same data of a parameter (message_kind.py) are looked up by the first.
                self.instructions.setdefault((i.kind.first_alike, i.values, pairs), []).append(n)
            elif isinstance(i, Reduce):
                self.instructions.setdefault(
                    ("sum", i.parameters, i.regions, i.devices), []
                ).append(n)
        self.unclaimed = {n for numbers in self.instructions.values() for n in numbers}

    def _check_bundle(self, bundle: Bundle) -> list[int]:
        """Checks a bundle in a step; returns the updates and pulls that the next use has to wait for."""
        if bundle.server < 0:
            return [self._check_collective_update(bundle)]
        writers, updates = [], []  # instruction numbers; writers: updates and pulls
        earlier_updates = self.updates.setdefault(bundle, [])  # by earlier step, its updates
        # If updates are asynchronous, every holder pushes and pulls on its own.
        holder_groups = (
            [bundle.devices] if self.sync.synchronous else [(d,) for d in bundle.devices]
        )
        bound = self.sync.staleness  # steps; 0: synchronous, None: no bound
        # With bounded staleness, the updates of `bound` steps ago, which all pulls wait for.
        awaited_updates = (
            earlier_updates[len(earlier_updates) - bound]
            if bound is not None and 0 < bound <= len(earlier_updates)
            else []
        )
        for devices in holder_groups:
            update = self._check_update(bundle.with_devices(devices))
            updates.append(update)
            writers.append(update)
            pairs = [(bundle.server, d) for d in devices if d != bundle.server]
            if pairs:
                pull = self._one_move(MessageKind.PULL, bundle, pairs)
                self._check_waits_for(pull, [update, *awaited_updates])
                writers.append(pull)
        earlier_updates.append(updates)
        return [*writers, *awaited_updates]

    def _check_collective_update(self, bundle: Bundle) -> int:
        """Checks that all holders sum and update a bundle; returns the number of the update."""
        number = self._one_instruction(
            (bundle.parameters, bundle.slices, bundle.devices), "its update on all holders", bundle
        )
        ready = self.backward
        if len(bundle.devices) > 1:
            wanted = ("sum", bundle.parameters, tuple((s,) for s in bundle.slices), bundle.devices)
            total = self._one_instruction(wanted, f"its sum over {list(bundle.devices)}", bundle)
            self._check_waits_for(total, self.backward)
            ready = [total]
        self._check_waits_for(number, ready)
        return number

    def _check_update(self, bundle: Bundle) -> int:
        """Checks that a bundle is pushed to its server and updated; returns the number of the update."""
        wanted = (bundle.parameters, bundle.slices, (bundle.server,))
        number = self._one_instruction(wanted, f"its update for {list(bundle.devices)}", bundle)
        if bundle.server in bundle.devices:
            self._check_waits_for(number, self.backward)
        pairs = [(d, bundle.server) for d in bundle.devices if d != bundle.server]
        if pairs:
            push = self._one_move(MessageKind.PUSH, bundle, pairs)
            self._check_waits_for(push, self.backward)
            self._check_waits_for(number, [push])
        return number

    def _one_move(self, kind: MessageKind, bundle: Bundle, pairs: Sequence[tuple[int, int]]) -> int:
        """Returns the only move of a kind that sends a bundle between these pairs (source, target)."""
        sent = tuple(sorted((source, target, bundle.boxes) for source, target in pairs))
        wanted = (kind, bundle.parameters, sent)
        return self._one_instruction(wanted, f"its {kind} by {sorted(pairs)}", bundle)

    def _one_instruction(self, wanted: object, what: str, bundle: Bundle) -> int:
        """Returns the only instruction with the key `wanted`; raises InputError unless there is one."""
        numbers = self.instructions.get(wanted, [])
        if len(numbers) != 1:
            box = bundle.boxes[bundle.parameters.index(self.name)]
            raise InputError(
                f"slice {box} of parameter '{self.name}' has {what} {len(numbers)} times in step "
                f"{self.step}, not once."
            )
        self.unclaimed.discard(numbers[0])
        return numbers[0]

    def _check_waits_for(self, number: int, others: Iterable[int]) -> None:
        check_waits_for(self.program, number, others)
