"""Finds, for overlapping steps, the version of each weight that a segment uses, and how long it is stashed.

The version of a weight is the number of updates that it has had. Keeping old versions for forwards that
still use them is PipeDream's weight stashing. Example: with PipeDream-2BW, a forward of step 2 uses version
1 of a weight although version 2 exists already. So the update that made version 2 stashed version 1 until
this forward has run. A Run is the instruction of a program that computes one operator in one phase ("F":
forward); a key names a step, a micro-batch and its variant (program/program.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.graph.graph import Op
from raddle.program.program import Instruction, Key, Program, Run
from raddle.program.weight_versions import parameters_by_op
from raddle.runtime.actions import Action, Call, Forward, UpdateParameters


class VersionBuilder:
    """Looks up the weight versions that the program gives to the operators of one device."""

    def __init__(self, program: Program, device: int, instructions: Iterable[Instruction]) -> None:
        read = parameters_by_op(program.graph)  # operator -> names of the parameters that it reads
        # (key, operator) -> weight -> version
        self._versions: dict[tuple[Key, str], dict[str, int]] = {}
        for i in instructions:
            if isinstance(i, Run) and device in i.devices and i.phase == "F" and i.versions:
                self._versions[i.key, i.op] = dict(zip(read[i.op], i.versions, strict=True))

    def versions_for(self, call: Call, ops: Sequence[Op]) -> tuple[int, ...]:
        """Returns the version of each weight of a segment's call.

        All operators of a segment that read a weight use the same version of it.
        """
        versions: dict[object, int] = {}
        for op in ops:
            versions.update(self._versions.get((call.key, op.name), {}))
        return tuple(versions[piece.tensor_id] for piece in call.code.weights)


def mark_stashed_versions(actions: Iterable[Action]) -> None:
    """Notes in updates which old weights to stash, and in forwards which stashed versions expire."""
    update_counts: dict[int, int] = {}  # slot -> updates so far
    # (slot, version) -> the update that replaces this version by the next one
    replaced_by: dict[tuple[int, int], UpdateParameters] = {}
    # (slot, version) -> the last forward that uses this version after it was replaced
    last_uses: dict[tuple[int, int], Forward] = {}
    for action in actions:
        if isinstance(action, UpdateParameters):
            for slot in action.slots:
                replaced_by[slot, update_counts.get(slot, 0)] = action
                update_counts[slot] = update_counts.get(slot, 0) + 1
        elif isinstance(action, Forward) and not action.recomputation:
            for slot, version in zip(action.call.weights, action.versions, strict=True):
                if version < update_counts.get(slot, 0):
                    last_uses[slot, version] = action
    for (slot, version), action in last_uses.items():
        replaced_by[slot, version].stashed += (slot,)
        action.expired_versions.append((slot, version))
