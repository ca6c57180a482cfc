"""What becomes of gradients of parameters: the script says when they leave, and what is updated then."""

# p: parameter, n: row of the script

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from raddle.plans.sync import Sync
from raddle.program import step_script
from raddle.program.instruction_writer import InstructionWriter
from raddle.program.parameter_layout import ParameterLayout, holders
from raddle.program.program import Key, ParameterRegion
from raddle.program.step_script import COLUMNS, ROWS, SUMMED, Facts, State
from raddle.program.sync_instructions import Hanging, Row, Sliced, Whole, pieces_of
from raddle.program.turns import Turns


class Gradients:
    """Gradients of a program on their way; where steps overlap, each parameter is updated at once."""

    def __init__(self, known: ParameterLayout, writer: InstructionWriter, *, overlap: bool) -> None:
        self.known, self.writer = known, writer
        sync, pieces = known.plan.syncing, pieces_of(known)
        self.number = {name: p for p, name in enumerate(known.trainable)}
        self.facts = _facts(known, pieces, overlap=overlap)
        sliced = sync.sliced and not overlap
        self.hanging: Hanging = (Sliced if sliced else Whole)(known, writer)
        self.given: dict[tuple[str, int], list[int]] = {}  # by parameter and step, what contributed
        self.updated: dict[str, list[int]] = {}  # by parameter, what wrote it last
        self.fresh: dict[str, list[int]] = {}  # by parameter, what writes it in this step
        self._begin()

    def _begin(self) -> None:
        """A step begins."""
        self.rows = [0] * (3 * (len(self.number) + len(self.facts.travels)) * COLUMNS)
        self.state = _state(self.facts, self.rows)
        self.hung: list[int] = []  # by row, its instruction
        # A forward alone has no gradients, and so no slices.
        order = self.known.plan.order if self.facts.ordered and self.facts.travels else ()
        self.turns = Turns([s for s in order if self.facts.travels[s]])

    def contribute(self, name: str, key: Key, at: int) -> None:
        """Notes a contribution to a parameter's gradient, which leaves once it is complete."""
        own, p = self.given.setdefault((name, key.step), []), self.number[name]
        if not own:
            self.facts.rank[p] = len(self.given)
        own.append(at)
        if len(own) < self.known.plan.microbatches * len(self.known.lowered[0].graders[name]):
            return
        if self.facts.at_once:  # no row waits for one of an earlier event
            self.state.numbers[ROWS], self.state.numbers[SUMMED], self.hung = 0, 0, []
        self._follow(step_script.COMPLETE, p, at, key)
        first = self.facts.first[p]
        slices = range(first, first + self.facts.slices[p]) if self.facts.ordered else ()
        for s in self.turns.complete(s for s in slices if self.facts.travels[s]):
            self._follow(step_script.TURN, s, self.number[self.hanging.name(_row(s))], key)

    def action_ends(self, key: Key) -> None:
        """A stage of a micro-batch has run backward."""
        self._follow(step_script.ACTION_ENDS, -1, -1, key)

    def step_ends(self, key: Key) -> None:
        """All gradients of a step are complete."""
        self._follow(step_script.STEP_ENDS, -1, -1, key)
        assert not self.turns.left, "all gradients are complete at the end of a step"
        if isinstance(self.hanging, Sliced):
            self.updated = self.fresh
            self._await_all()
        else:
            self.updated.update(self.fresh)
        self.fresh, self.given = {}, {}
        self._begin()

    def _follow(self, event: int, subject: int, run: int, key: Key) -> None:
        """Hangs instructions on the rows that follow from an event."""
        step_script.assemble([event], [subject], [run], self.facts, self.state, [0, 0])
        for n in range(len(self.hung), self.state.numbers[ROWS]):
            self.hung.append(self._hang(n, key))

    def _hang(self, n: int, key: Key) -> int:
        what, subject, _, _, p, after, first, count = self.rows[n * COLUMNS : (n + 1) * COLUMNS]
        members = [self.state.members[k] for k in range(first, first + count)]
        row = Row(what, subject, p, after, members)
        gradient = self.given[self.known.trainable[p], key.step] if p >= 0 else []
        for own in members:
            gradient = [*gradient, *self.given[self.known.trainable[own], key.step]]
        at = self.hanging.write(
            row, key, gradient, self.hung[after : after + 1] if after >= 0 else []
        )
        if what in (step_script.UPDATE, step_script.PULL):
            name = self.hanging.name(row)
            if isinstance(self.hanging, Sliced):
                self.fresh.setdefault(name, []).extend([at, *self.hanging.late(row, key)])
            else:
                self.fresh[name] = [at]
        return at

    def _await_all(self) -> None:
        """The next step waits for all parameters, unless they are urgent: then each for its own."""
        if self.known.plan.syncing.urgent:
            return
        every = [i for own in self.updated.values() for i in own]
        if self.known.plan.syncing.divided:
            for i in every:
                for d in self.writer.instructions[i].devices:
                    self.writer.latest.setdefault(d, []).append(i)
        seen: set[int] = set()
        for op in self.known.graph.ops:
            for name in (i for i in op.inputs if i in self.updated):
                own = set(holders(self.known.regions[name]))
                if own - seen:  # the first that some device uses
                    self.updated[name] = every
                    seen |= own


def way_of(sync: Sync) -> int:
    """The rules of the script by which a plan synchronises."""
    if sync.sliced:
        return step_script.SLICE_SUMS if sync.collective else step_script.SLICES
    return step_script.SERVER if sync.inline else step_script.BUCKETS


def _row(s: int) -> Row:
    return Row(step_script.SUM, s, -1, -1, ())


def _facts(
    known: ParameterLayout, pieces: list[tuple[str, ParameterRegion]], *, overlap: bool
) -> Facts:
    sync, values = known.plan.syncing, known.graph.values
    way = way_of(sync)
    if overlap and sync.sliced:
        way = step_script.BUCKETS
    numbers = {group: g for g, group in enumerate(dict.fromkeys(known.groups.values()))}
    counts = Counter(name for name, _ in pieces)
    first = accumulate((counts[n] for n in known.trainable), initial=0)
    return Facts(
        way,
        0 if overlap else known.plan.bucket,
        overlap,
        not sync.divided,
        bool(known.plan.order) and way == step_script.SLICE_SUMS,
        [numbers[known.groups[n]] if n in known.groups else -1 for n in known.trainable],
        [values[n].dtype.itemsize * sum(s.box.volume for s in known.synced_regions(n)) for n in known.trainable],
        list(first),
        [counts[n] for n in known.trainable],
        [int(share.needs_sync) for _, share in pieces],
        [0] * len(known.trainable),
    )  # fmt: skip


def _state(facts: Facts, rows: list[int]) -> State:
    count = len(facts.group)
    own = [facts.group[p] for p in range(count)]
    groups = max(own, default=-1) + 1
    left = [own.count(g) for g in range(groups)]
    return State(
        [0] * 8, left, [0] * groups, [-1] * groups, [0] * groups, [0] * count, [0] * groups,
        [0] * count, [0] * count, [0] * count, [0] * count, rows,
    )  # fmt: skip
