"""Checks parameters over all steps: summed over all holders, updated, and seen by the next step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from raddle.errors import InputError
from raddle.graph.box import Box, covers, disjoint
from raddle.plans.pipelining import is_asynchronous
from raddle.program.checks.boxes import by_way, held_by, less
from raddle.program.checks.refuse import check_waits_for, refuse
from raddle.program.checks.slices import check_slices
from raddle.program.describe import PHASES, Boxes
from raddle.program.program import (
    Instruction,
    Message,
    Move,
    ParameterRegion,
    Program,
    Reduce,
    Run,
    Update,
)
from raddle.program.weight_versions import parameters_by_op


def check_parameters(program: Program) -> Mapping[str, Boxes]:
    """Gradients are summed over all holders before an update, updates seen by the next step."""
    ops = {op.name: op for op in program.graph.ops}
    events: dict[str, list[int]] = {p.name: [] for p in program.graph.parameters}
    for number, i in enumerate(program.instructions):
        if isinstance(i, Run):
            for name in set(ops[i.op].inputs) & events.keys():
                events[name].append(number)
        elif isinstance(i, Reduce):
            for name in i.parameters:
                events[name].append(number)
        elif isinstance(i, Update):
            events[i.parameter].append(number)
        elif isinstance(i, Move) and i.kind.is_of_parameter:
            events[i.value].append(number)
    held = {name: held_by(shares) for name, shares in program.regions.items()}
    updated = {
        name: _Parameter(program, name, numbers).check()
        for name, numbers in events.items()
        if name in program.active
    }
    return held | updated


class _Parameter:
    """What happens to one parameter over the steps of a program."""

    def __init__(self, program: Program, name: str, numbers: Sequence[int]) -> None:
        self.program, self.name = program, name
        self.steps: list[list[tuple[int, Instruction]]] = [[] for _ in range(program.plan.steps)]
        for n in numbers:
            instruction = program.instructions[n]
            self.steps[instruction.key.step].append((n, instruction))
        self.shares: tuple[ParameterRegion, ...] = ()

    def check(self) -> dict[int, list[Box]]:
        """The boxes that each device holds."""
        if self.name in self.program.slices:
            return check_slices(self.program, self.name, self.steps)
        before: list[int] = []
        written: list[list[int]] = []  # by version, from the first update on
        overlap = is_asynchronous(self.program.plan)
        for step, events in enumerate(self.steps):
            updates = [(n, i) for n, i in events if isinstance(i, Update)]
            if len(updates) != 1:
                raise InputError(
                    f"parameter '{self.name}' is updated {len(updates)} times in step {step}."
                )
            ((number, update),) = updates
            self._check_shares(step, update)
            if not overlap:
                self._check_reads(events, before, number)
            self._check_sum(step, events, number, update)
            before = self._spread(step, events, number)
            written.append(before)
        if overlap:
            self._check_versions(written)
        return held_by(self.shares)

    def _refuse(self, number: int, reason: str) -> NoReturn:
        refuse(self.program, number, reason)

    def _check_shares(self, step: int, update: Update) -> None:
        if step == 0:
            self.shares = update.regions
            boxes = [share.box for share in self.shares]
            full = Box.full(self.program.graph.values[self.name].shape)
            if not disjoint(boxes) or not covers(boxes, full):
                raise InputError(f"the shares of parameter '{self.name}' do not cover {full} once.")
        server = self.program.plan.server  # a named one need not read what it keeps
        wrong = [s for s in update.regions if s.server not in (-1, server, *s.devices)]
        updated = {d for s in self.shares for d in s.updaters}
        if update.regions != self.shares or wrong or set(update.devices) != updated:
            self._disagree(step)

    def _disagree(self, step: int) -> NoReturn:
        raise InputError(
            f"the holders of parameter '{self.name}' disagree in step {step}: a share has other devices "
            "where it is summed than where it is updated."
        )

    def _check_reads(
        self, events: Sequence[tuple[int, Instruction]], before: Sequence[int], number: int
    ) -> None:
        """Every use of a step lies between the update before and the step's own."""
        for n, i in events:
            if isinstance(i, Run) and n > number:
                self._refuse(number, f"it comes before '{i.op}' has run {PHASES[i.phase]}.")
            if isinstance(i, Run) and i.phase == "F" and not set(before) <= set(i.deps):
                self._refuse(
                    n, f"it does not wait for the update of '{self.name}' in the step before."
                )

    def _check_versions(self, written: Sequence[Sequence[int]]) -> None:
        """A forward waits for the weights that it uses, and its backward uses the same."""
        read = parameters_by_op(self.program.graph)
        forward: dict[tuple[str, int, int], int] = {}
        for n, i in (event for events in self.steps for event in events):
            if not isinstance(i, Run):
                continue
            if len(i.versions) != len(read[i.op]):
                self._refuse(n, f"it does not say which version of '{self.name}' it uses.")
            version = dict(zip(read[i.op], i.versions, strict=True))[self.name]
            gave = written[version - 1] if 0 < version <= len(written) else ()
            if not 0 <= version <= len(written) or any(w > n for w in gave):
                self._refuse(n, f"it uses version {version} of '{self.name}' before it is there.")
            own = (i.op, i.key.step, i.key.micro_batch)
            if i.phase == "F":
                check_waits_for(self.program, n, gave)
            elif forward.get(own) != version:
                self._refuse(
                    n,
                    f"it uses version {version} of '{self.name}', its forward {forward.get(own)}.",
                )
            forward.setdefault(own, version)

    def _check_sum(
        self, step: int, events: Sequence[tuple[int, Instruction]], number: int, update: Update
    ) -> None:
        gives = "W" if self.program.plan.split_backward else "B"
        backward = {n for n, i in events if isinstance(i, Run) and i.phase == gives}
        shared = tuple(s for s in self.shares if s.needs_sync)
        if not shared:
            check_waits_for(self.program, number, backward)
            return
        sums = [
            (n, i)
            for n, i in events
            if isinstance(i, Reduce) or (isinstance(i, Move) and i.kind.is_push)
        ]
        if len(sums) != 1 or sums[0][0] > number or sums[0][0] not in update.deps:
            self._refuse(number, "it comes before its gradients are summed over all holders.")
        n, summing = sums[0]
        check_waits_for(self.program, n, backward)
        if isinstance(summing, Reduce):
            own = dict(zip(summing.parameters, summing.regions, strict=True))[self.name]
            agree = own == shared and all(s.server < 0 for s in shared)
        else:
            agree = isinstance(summing, Move) and _carries(summing.messages, shared, up=True)
        if not agree:
            self._disagree(step)

    def _spread(
        self, step: int, events: Sequence[tuple[int, Instruction]], number: int
    ) -> list[int]:
        """What the next step waits for: the update or, from a server, what it sends out."""
        served = [s for s in self.shares if s.server >= 0 and s.needs_sync]
        pulls = [(n, i) for n, i in events if isinstance(i, Move) and i.kind.is_pull]
        if not served:
            return [number]
        if len(pulls) != 1 or pulls[0][0] < number:
            self._refuse(number, "what it gives is not sent to the other holders after it.")
        n, pull = pulls[0]
        check_waits_for(self.program, n, [number])
        if not (isinstance(pull, Move) and _carries(pull.messages, served, up=False)):
            self._disagree(step)
        return [n]


def _carries(messages: Sequence[Message], shares: Sequence[ParameterRegion], *, up: bool) -> bool:
    """Whether messages bring each share from its holders to its home, or back, and nothing else."""
    wanted: dict[tuple[int, int], list[Box]] = {}
    for share in shares:
        for d in share.devices:
            if d != share.server:
                way = (d, share.server) if up else (share.server, d)
                wanted.setdefault(way, []).append(share.box)
    given = {way[:2]: boxes for way, boxes in by_way(messages).items()}
    return wanted.keys() == given.keys() and all(
        disjoint(given[way]) and not less(boxes, given[way]) and not less(given[way], boxes)
        for way, boxes in wanted.items()
    )
