"""Signals: what makes an action wait for another whose results it does not read (`F1.0 after B0.1`).

An action starts when the awaited one has ended on every device that takes part in it. A device does its
own work in the program's order; from every other device it has to hear. So each device of the awaited
action sends a signal, a message without data, to each device of the waiting one. What counts is what
devices compute: messages that are under way and sums of gradients do not hold up a waiting action.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from raddle.graph.box import Box
from raddle.plans.schedule import Action, Schedule, predecessors
from raddle.program.message_kind import MessageKind, Subject, check_all_kinds_sent
from raddle.program.program import Instruction, Merge, Message, Run

SIGNAL_BOXES = (Box((), ()),)  # one element, which nobody reads
SIGNALS = {  # by the phase of the action that has ended
    "F": MessageKind.SIGNAL,
    "B": MessageKind.SIGNAL,
    "W": MessageKind.SIGNAL,
}
check_all_kinds_sent(SIGNALS.values(), Subject.ACTION)


@dataclass
class ActionEnds:
    """By action, the instructions that have to end before the action has ended.

    An action without instructions, such as a backward where everything is frozen, ends as soon as all that
    comes before it has ended. Actions are added in an order of the schedule.
    """

    schedule: Schedule
    instructions: dict[Action, tuple[int, ...]] = field(default_factory=dict)

    def add(self, action: Action, numbers: Iterable[int]) -> None:
        before = (n for a in self._predecessors[action] for n in self.instructions[a])
        self.instructions[action] = tuple(numbers) or tuple(sorted(set(before)))

    @cached_property
    def _predecessors(self) -> dict[Action, list[Action]]:
        return predecessors(self.schedule)


class Signals:
    """The signals of one pass through a schedule: of a step or, where steps overlap, of all of them."""

    def __init__(self, schedule: Schedule) -> None:
        self.ends = ActionEnds(schedule)
        self.awaited: dict[Action, list[Action]] = {}
        self.waiting: dict[Action, list[Action]] = {}
        for waiting_action, awaited_action in dict.fromkeys(schedule.waits):
            self.awaited.setdefault(waiting_action, []).append(awaited_action)
            self.waiting.setdefault(awaited_action, []).append(waiting_action)
        self.sent: dict[
            Action, int
        ] = {}  # by awaited action, the instruction that sends its signals

    def signals_for(self, action: Action) -> list[int]:
        """The instructions that send the signals that an action waits for."""
        return [self.sent[a] for a in self.awaited.get(action, ()) if a in self.sent]

    def note_end(self, action: Action, instructions: Sequence[Instruction], first: int) -> None:
        """Notes that an action has been written, from instruction `first` on."""
        written = range(first, len(instructions))
        self.ends.add(action, (n for n in written if isinstance(instructions[n], Run | Merge)))


def signal_messages(sources: Iterable[int], targets: Iterable[int]) -> tuple[Message, ...]:
    """One signal from each source to each target that is another device."""
    pairs = {(s, t) for s in set(sources) for t in set(targets) if s != t}
    return tuple(Message(s, t, SIGNAL_BOXES) for s, t in sorted(pairs))
