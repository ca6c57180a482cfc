"""Where steps overlap: which version of each weight a segment uses, and for how long an old one is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.graph.graph import Op
from raddle.program.program import Instruction, Key, Program, Run
from raddle.program.weight_versions import parameters_by_op
from raddle.runtime.actions import Action, Call, Forward, UpdateParameters


class VersionBuilder:
    """The versions that operators of one device use, as the program says."""

    def __init__(self, program: Program, device: int, instructions: Iterable[Instruction]) -> None:
        read = parameters_by_op(program.graph)
        self._versions: dict[tuple[Key, str], dict[str, int]] = {}  # by operator and weight
        for i in instructions:
            if isinstance(i, Run) and device in i.devices and i.phase == "F" and i.versions:
                self._versions[i.key, i.op] = dict(zip(read[i.op], i.versions, strict=True))

    def versions_for(self, call: Call, ops: Sequence[Op]) -> tuple[int, ...]:
        """By weight, the version that a segment uses; its operators agree on it."""
        versions: dict[object, int] = {}
        for op in ops:
            versions.update(self._versions.get((call.key, op.name), {}))
        return tuple(versions[piece.tensor_id] for piece in call.code.weights)


def mark_stashed_versions(actions: Iterable[Action]) -> None:
    """Notes which old weights are used after an update, and which forward is the last to use them."""
    update_counts: dict[int, int] = {}  # updates so far, by slot
    replaced_by: dict[tuple[int, int], UpdateParameters] = {}  # that replaces a version of a slot
    last_uses: dict[tuple[int, int], Forward] = {}  # the last use of one that was replaced
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
