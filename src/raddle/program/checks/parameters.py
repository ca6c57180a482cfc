"""Checks the synchronisation of parameters over all steps.

In every step, the gradient of a parameter is summed over all holders, the parameter is updated once, and
the next step uses the updated parameter. Sync kinds that work slice by slice are checked in slices.py. A
docstring of a check says what must hold; the check raises InputError if it does not.

A region is a box of a parameter with its holders. Its updaters are the devices that apply the optimizer to
it: its server or, if it has none, all holders (program.py). Version v of a parameter has had v updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from raddle.errors import InputError
from raddle.graph.box import Box, covers, disjoint
from raddle.plans.pipelining import is_asynchronous
from raddle.program.checks.boxes import boxes_by_holder, boxes_by_path, subtract_all
from raddle.program.checks.refuse import check_waits_for, refuse
from raddle.program.checks.shards import check_gathers
from raddle.program.checks.slices import check_slices
from raddle.program.collective_kind import Collective
from raddle.program.describe import PHASES, BoxesByDevice
from raddle.program.parameter_region import ParameterRegion
from raddle.program.program import Gather, Instruction, Message, Move, Program, Reduce, Run, Update
from raddle.program.weight_versions import parameters_by_op

# n: number of an instruction, i: the instruction, d: device, s: region of a parameter


def check_parameters(program: Program) -> Mapping[str, BoxesByDevice]:
    """Checks all parameters; returns, by parameter, the boxes that each device holds."""
    ops = {op.name: op for op in program.graph.ops}
    # By parameter, the numbers of the instructions about it.
    events: dict[str, list[int]] = {p.name: [] for p in program.graph.parameters}
    for number, i in enumerate(program.instructions):
        if isinstance(i, Run):
            for name in set(ops[i.op].inputs) & events.keys():
                events[name].append(number)
        elif isinstance(i, Reduce | Gather | Update):
            for name in set(i.parameters):  # a bundle may have several slices of one
                events[name].append(number)
        elif isinstance(i, Move) and i.kind.is_of_parameter:
            for name in set(i.values):
                events[name].append(number)
    held = {name: boxes_by_holder(regions) for name, regions in program.regions.items()}
    updated = {
        name: _ParameterReplay(program, name, numbers).check()
        for name, numbers in events.items()
        if name in program.active  # it has a gradient
    }
    return held | updated


class _ParameterReplay:
    """Replays one parameter over the steps of a program. numbers: of all instructions about it."""

    def __init__(self, program: Program, name: str, numbers: Sequence[int]) -> None:
        self.program, self.name = program, name
        self.steps: list[list[tuple[int, Instruction]]] = [[] for _ in range(program.plan.steps)]
        for n in numbers:
            instruction = program.instructions[n]
            self.steps[instruction.key.step].append((n, instruction))
        self.regions: tuple[ParameterRegion, ...] = ()  # those of the first update

    def check(self) -> dict[int, list[Box]]:
        """Checks all steps; returns the boxes that each device holds."""
        if self.name in self.program.slices:
            return check_slices(self.program, self.name, self.steps)
        # The update or pull of the step before, which the next use has to wait for.
        writers: list[int] = []
        written: list[list[int]] = []  # the writers of versions 1, 2, ...
        # Whether steps overlap: a step begins before the updates of the step before.
        overlap = is_asynchronous(self.program.plan)
        for step, events in enumerate(self.steps):
            updates = [(n, i) for n, i in events if isinstance(i, Update)]
            if len(updates) != 1:  # with shards, too: one instruction updates all shards
                raise InputError(
                    f"parameter '{self.name}' is updated {len(updates)} times in step {step}."
                )
            ((number, update),) = updates
            self._check_regions(step, update)
            if not overlap:
                self._check_reads(events, writers, number)
            self._check_sum(step, events, number, update)
            if self.program.sharded:
                writers = check_gathers(
                    self.program, self.name, self.regions, events, writers, number
                )
            else:
                writers = self._check_pull(step, events, number)
            written.append(writers)
        if overlap:
            self._check_versions(written)
        return boxes_by_holder(self.regions)

    def _refuse(self, number: int, reason: str) -> NoReturn:
        refuse(self.program, number, reason)

    def _check_regions(self, step: int, update: Update) -> None:
        """Checks that regions cover the parameter, and have the same holders and updaters in all steps."""
        if step == 0:
            self.regions = update.regions
            boxes = [region.box for region in self.regions]
            full = Box.full(self.program.graph.values[self.name].shape)
            if not disjoint(boxes) or not covers(boxes, full):
                raise InputError(
                    f"the regions of parameter '{self.name}' do not cover {full} once."
                )
        server = self.program.plan.server  # a server that the plan names need not be a holder
        wrong = [s for s in update.regions if s.server not in (-1, server, *s.devices)]
        updated = {d for s in self.regions for d in s.updaters}
        if update.regions != self.regions or wrong or set(update.devices) != updated:
            self._refuse_disagreement(step)

    def _refuse_disagreement(self, step: int) -> NoReturn:
        raise InputError(
            f"the holders of parameter '{self.name}' disagree in step {step}: a region has other devices "
            "where it is summed than where it is updated."
        )

    def _check_reads(
        self, events: Sequence[tuple[int, Instruction]], writers: Sequence[int], number: int
    ) -> None:
        """Checks that every use in a step comes after the last step's update, and before that of this step.

        writers: the instructions that forwards have to wait for. number: the update of this step.
        """
        for n, i in events:
            if isinstance(i, Run) and n > number:
                self._refuse(number, f"it comes before '{i.op}' has run {PHASES[i.phase]}.")
            if isinstance(i, Run) and i.phase == "F" and not set(writers) <= set(i.deps):
                self._refuse(
                    n, f"it does not wait for the update of '{self.name}' in the step before."
                )

    def _check_versions(self, written: Sequence[Sequence[int]]) -> None:
        """Checks that a forward waits for the version it uses, and its backward uses the same version."""
        parameters_read = parameters_by_op(self.program.graph)
        # By operator, step and micro-batch, the version that its forward used.
        forward: dict[tuple[str, int, int], int] = {}
        for n, i in (event for events in self.steps for event in events):
            if not isinstance(i, Run):
                continue
            if len(i.versions) != len(parameters_read[i.op]):
                self._refuse(n, f"it does not say which version of '{self.name}' it uses.")
            version = dict(zip(parameters_read[i.op], i.versions, strict=True))[self.name]
            version_writers = written[version - 1] if 0 < version <= len(written) else ()
            if not 0 <= version <= len(written) or any(w > n for w in version_writers):
                self._refuse(n, f"it uses version {version} of '{self.name}' before it is there.")
            run_key = (i.op, i.key.step, i.key.micro_batch)
            if i.phase == "F":
                check_waits_for(self.program, n, version_writers)
            elif forward.get(run_key) != version:
                self._refuse(
                    n,
                    f"it uses version {version} of '{self.name}', its forward {forward.get(run_key)}.",
                )
            forward.setdefault(run_key, version)

    def _check_sum(
        self, step: int, events: Sequence[tuple[int, Instruction]], number: int, update: Update
    ) -> None:
        """Checks that the update waits for one sum (or push) of all runs' gradients over all holders.

        If shards have replicas (HSDP), the reduce-scatter within groups is followed by an all-reduce across
        groups, and the update waits for both.
        """
        # The phase that gives gradients of parameters.
        gradient_phase = "W" if self.program.plan.split_backward else "B"
        backward = {n for n, i in events if isinstance(i, Run) and i.phase == gradient_phase}
        synced = tuple(s for s in self.regions if s.needs_sync)
        if not synced:
            check_waits_for(self.program, number, backward)
            return
        sums = [
            (n, i)
            for n, i in events
            if isinstance(i, Reduce) or (isinstance(i, Move) and i.kind.is_push)
        ]
        replicated = tuple(s for s in synced if s.group_size)
        wanted_sums = 2 if replicated else 1
        if len(sums) != wanted_sums or any(n > number or n not in update.deps for n, _ in sums):
            self._refuse(number, "it comes before its gradients are summed over all holders.")
        if replicated:
            n, replica_sum = sums[1]
            check_waits_for(self.program, n, [sums[0][0]])
            if not self._reduces(replica_sum, replicated, Collective.ALL_REDUCE):
                self._refuse_disagreement(step)
        n, sum_instruction = sums[0]
        check_waits_for(self.program, n, backward)
        if isinstance(sum_instruction, Reduce):
            wanted = Collective.REDUCE_SCATTER if self.program.sharded else Collective.ALL_REDUCE
            complete = self._reduces(sum_instruction, synced, wanted) and all(
                s.server < 0 for s in synced
            )
        else:
            complete = isinstance(sum_instruction, Move) and _messages_bring(
                sum_instruction.messages, synced, push=True
            )
        if not complete:
            self._refuse_disagreement(step)

    def _reduces(
        self, i: Instruction, regions: tuple[ParameterRegion, ...], collective: Collective
    ) -> bool:
        """Returns whether an instruction sums just these regions of the parameter, by this collective."""
        if not isinstance(i, Reduce) or i.collective is not collective:
            return False
        return dict(zip(i.parameters, i.regions, strict=True))[self.name] == regions

    def _check_pull(
        self, step: int, events: Sequence[tuple[int, Instruction]], number: int
    ) -> list[int]:
        """Checks the pull from a server, if any; returns the instructions that the next step waits for."""
        on_server = [s for s in self.regions if s.server >= 0 and s.needs_sync]
        pulls = [(n, i) for n, i in events if isinstance(i, Move) and i.kind.is_pull]
        if not on_server:
            return [number]
        if len(pulls) != 1 or pulls[0][0] < number:
            self._refuse(number, "its result is not sent to the other holders after it.")
        n, pull = pulls[0]
        check_waits_for(self.program, n, [number])
        if not (isinstance(pull, Move) and _messages_bring(pull.messages, on_server, push=False)):
            self._refuse_disagreement(step)
        return [n]


def _messages_bring(
    messages: Sequence[Message], regions: Sequence[ParameterRegion], *, push: bool
) -> bool:
    """Returns whether messages bring each region from its holders to its server (push), or back (not push).

    The messages may bring nothing else.
    """
    wanted: dict[tuple[int, int], list[Box]] = {}  # by (source, target)
    for region in regions:
        for d in region.devices:
            if d != region.server:
                pair = (d, region.server) if push else (region.server, d)
                wanted.setdefault(pair, []).append(region.box)
    # by (source, target), which are the first two elements of a path
    sent = {path[:2]: boxes for path, boxes in boxes_by_path(messages).items()}
    return wanted.keys() == sent.keys() and all(
        disjoint(sent[pair])
        and not subtract_all(boxes, sent[pair])
        and not subtract_all(sent[pair], boxes)
        for pair, boxes in wanted.items()
    )
