"""Notes in the actions when slots are emptied and gathered parameters released: after their last use.

A gathered parameter is one of ZeRO-3 that is assembled from all ranks' shards before its use (zero3.py). A
call is a generated function, of a segment or a merge, with the slots that it reads and fills (actions.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from raddle.runtime.actions import (
    Action,
    AwaitMessage,
    Backward,
    Forward,
    RecordLoss,
    RecordMetric,
    Send,
    StartGather,
    UpdateBuffers,
)

SlotUser = Forward | Send | AwaitMessage | UpdateBuffers | RecordLoss | RecordMetric


def mark_dead_slots(actions: Sequence[Action], live: Collection[int]) -> None:
    """Fills `dead_slots` of each action: the slots that no later action uses, except those in `live`.

    live: slots that keep their tensors after the step: parameters, buffers, constants, outputs.
    """
    read_later = set(live)  # slots that later actions use, or that always stay
    for action in reversed(actions):
        if isinstance(action, SlotUser):
            for slot in _slots_of(action):
                if slot not in read_later:
                    read_later.add(slot)
                    action.dead_slots.append(slot)


def mark_releases(actions: Sequence[Action], slots: Collection[int]) -> None:
    """Fills `release` of forwards and backwards: the gathered parameters that are freed after the action.

    An action frees a parameter if no later action uses it before it is gathered again. The slots that this
    rank does not use are removed from a StartGather. slots: those of the gathered ZeRO-3 parameters.
    """
    gathered = set(slots)
    used_later: set[int] = set()  # slots that are used again before they are gathered again
    for action in reversed(actions):
        if isinstance(action, StartGather):
            action.slots = tuple(slot for slot in action.slots if slot in used_later)
            used_later.difference_update(action.slots)
        elif isinstance(action, Forward | Backward):
            used_here = gathered & set(action.call.weights)
            action.release += sorted(used_here - used_later)
            used_later |= used_here


def _slots_of(action: SlotUser) -> Iterable[int]:
    """Returns the slots that an action reads or fills, without weights and without gradient messages."""
    if isinstance(action, Forward):
        call = action.call
        return [
            *call.differentiable,
            *call.nondifferentiable,
            *([] if action.recomputation else call.results),
        ]
    if isinstance(action, UpdateBuffers):
        piece_slots = [slot for _, pieces in action.partial_updates for _, slot in pieces]
        return [*(slot for _, slot in action.full_updates), *piece_slots]
    if isinstance(action, RecordLoss | RecordMetric):
        return [action.slot]
    message = action.receive if isinstance(action, AwaitMessage) else action
    return [s for part in message.parts for s in part.slots] if message.delivery.fills_slots else []
