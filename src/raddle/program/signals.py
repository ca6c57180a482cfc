"""Signals: messages without data that make an action of a pipeline schedule wait for another.

An action is a stage of a micro-batch in one phase: F1.0 is the forward (F) of micro-batch 1 on stage 0; B
is backward, W the backward of parameters. Most actions wait for data. A schedule may also let an action
wait for one whose results it does not read, as `F1.0 after B0.1` does. Then each device of the awaited
action sends a signal to each other device of the waiting action. An action has ended when its runs and
merges have ended; its messages and sums of gradients may still be in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from raddle.graph.box import Box
from raddle.plans.schedule import Action, Schedule, predecessors
from raddle.program.message_kind import MessageKind, Subject, check_all_kinds_sent
from raddle.program.program import Instruction, Merge, Message, Run

SIGNAL_BOXES = (Box((), ()),)  # a scalar, which nobody reads
SIGNALS = {  # by the phase of the action that has ended
    "F": MessageKind.SIGNAL,
    "B": MessageKind.SIGNAL,
    "W": MessageKind.SIGNAL,
}
# Importing fails if there is a kind of message about actions that is not in SIGNALS.
check_all_kinds_sent(SIGNALS.values(), Subject.ACTION)


@dataclass
class ActionEnds:
    """Knows, for each action, the instructions after which the action has ended.

    An action without instructions, such as the backward of a stage in which nothing needs a gradient, ends
    when the actions before it have ended. Actions have to be added in an order that the schedule allows.
    """

    schedule: Schedule
    instructions: dict[Action, tuple[int, ...]] = field(default_factory=dict)

    def add(self, action: Action, numbers: Iterable[int]) -> None:
        """Adds an action. numbers: of its runs and merges."""
        before = (n for a in self._predecessors[action] for n in self.instructions[a])
        self.instructions[action] = tuple(numbers) or tuple(sorted(set(before)))

    @cached_property
    def _predecessors(self) -> dict[Action, list[Action]]:
        return predecessors(self.schedule)


class Signals:
    """The signals of one pass through a schedule: one step or, if steps overlap, all steps."""

    def __init__(self, schedule: Schedule) -> None:
        self.ends = ActionEnds(schedule)
        self.awaited: dict[Action, list[Action]] = {}  # by waiting action, those it waits for
        self.waiting: dict[Action, list[Action]] = {}  # by awaited action, those that wait
        for waiting_action, awaited_action in dict.fromkeys(schedule.waits):
            self.awaited.setdefault(waiting_action, []).append(awaited_action)
            self.waiting.setdefault(awaited_action, []).append(waiting_action)
        self.sent: dict[Action, int] = {}  # by awaited action, the move that sends its signals

    def signals_for(self, action: Action) -> list[int]:
        """Returns the moves with the signals that an action waits for, as instruction numbers."""
        return [self.sent[a] for a in self.awaited.get(action, ()) if a in self.sent]

    def note_end(self, action: Action, instructions: Sequence[Instruction], first: int) -> None:
        """Notes that the instructions of an action have been written: all from number `first` on."""
        written = range(first, len(instructions))
        self.ends.add(action, (n for n in written if isinstance(instructions[n], Run | Merge)))


def signal_messages(sources: Iterable[int], targets: Iterable[int]) -> tuple[Message, ...]:
    """Returns a signal from each source device to each target device, except to itself."""
    pairs = {(s, t) for s in set(sources) for t in set(targets) if s != t}
    return tuple(Message(s, t, SIGNAL_BOXES) for s, t in sorted(pairs))
