"""From a program to the actions of one rank: boxes become slots, dependencies become an order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from raddle.graph.graph import Op
from raddle.plans.pipelining import is_asynchronous
from raddle.program.program import Instruction, Key, Merge, Move, Program, Reduce, Run, Update
from raddle.runtime.actions import Action, Actions, Backward, Forward, Note, Step
from raddle.runtime.building.buffers import Buffers
from raddle.runtime.building.calls import Calls
from raddle.runtime.building.lasting import place_lasting
from raddle.runtime.building.messages import Messages
from raddle.runtime.building.pieces import Held, Pieces, hulls_of
from raddle.runtime.building.releasing import drop, lay_down
from raddle.runtime.building.slices import Slices
from raddle.runtime.building.sums import Sums
from raddle.runtime.building.versions import Versions, spend


def settle(program: Program, device: int, place: torch.device) -> Actions:
    """The actions of a device for one step (the program's first); for all, where steps overlap."""
    overlap = is_asynchronous(program.plan)
    settling = _Settling(program, device, place)
    tag = 0
    for number, i in settling.here:
        count = len(i.messages) if isinstance(i, Move) else int(isinstance(i, Reduce))
        settling.take(number, i, range(tag, tag + count))
        tag += count
    settling.arrive_rest()
    out, pieces, slices, sums = settling.out, settling.pieces, settling.slices, settling.sums
    if program.slices:
        out.append(Step(settling.here[-1][1].key))
    if overlap:
        spend(out)
    outputs = _outputs(program, pieces)
    lasting = {s.slot for s in pieces.sources if s.role not in ("input", "seed")}
    drop(out, lasting | {slot for held in outputs.values() for _, slot in held})
    lay_down(out, [whole.slot for whole in settling.lasting.wholes])
    moves = (i for i in program.instructions if isinstance(i, Move) and not slices.concerns(i))
    links = sorted({(m.source, m.target) for i in moves for m in i.messages})
    return Actions(
        device, out, len(pieces.shapes), pieces.shapes, pieces.sources, settling.lasting.updated,
        sums.buckets, outputs, settling.buffers.written, sums.groups, links, slices.all(),
        settling.lasting.wholes, slices.order,
    )  # fmt: skip


class _Settling:
    """Goes through the instructions of one device, and asks its parts for actions."""

    def __init__(self, program: Program, device: int, place: torch.device) -> None:
        self.program, self.device = program, device
        overlap = is_asynchronous(program.plan)
        self.here = [
            (n, i) for n, i in enumerate(program.instructions) if overlap or not i.key.step
        ]
        self.pieces = Pieces(program.graph, [hulls_of(v, device) for v in program.variants])
        self.lasting = place_lasting(program, device, self.pieces)
        own = [i for _, i in self.here]
        self.calls = Calls(program, device, place, self.pieces, own)
        self.messages = Messages(program, device, self.pieces)
        self.buffers = Buffers(program, device, self.pieces)
        self.sums = Sums(program, device, self.pieces)
        self.slices = Slices(program, device, self.pieces)
        self.versions = Versions(program, device, own) if overlap else None
        self.out: list[Action] = []

    def take(self, number: int, i: Instruction, tags: Sequence[int]) -> None:
        """An instruction of the program; its transfers are told apart by tags."""
        if isinstance(i, Reduce):
            self.sums.note_groups(i)
        if self.slices.concerns(i):
            self.out += self.slices.give(i)
        elif isinstance(i, Update):
            self._update(i)
        elif self.device not in i.devices:
            return
        elif isinstance(i, Run):
            self._run(i)
        elif isinstance(i, Merge):
            self._merge(i)
        elif isinstance(i, Move):
            self.out += self.messages.move(number, i, tags)
        else:
            self.out += self.sums.reduce(i, tags[0])

    def arrive_rest(self) -> None:
        self._arrive(self.messages.unawaited())

    def _arrive(self, deps: Iterable[int]) -> None:
        """Waits for messages where they are first needed; buffers take what has come."""
        for d in deps:
            arriving = self.messages.arrive(d)
            self.out += arriving
            if arriving and arriving[0].receive.delivery.completes:
                first = arriving[0].receive
                self.out += self.buffers.keep([first.value], first.key)

    def _run(self, run: Run) -> None:
        """A segment runs where its first instruction stands; the others are part of it."""
        deps = self.calls.first(run)
        if deps is None:
            return
        self._arrive(sorted(deps))
        number = self.calls.segment_of[run.key.replica][run.op]
        call = self.calls.segment(number, run.key)
        if run.phase == "R":
            self.out.append(Forward(call, again=True))
        elif run.phase != "F":
            self.out.append(Backward(call, run.phase))
        else:
            ops = self.calls.segments[run.key.replica][number]
            versions = self.versions.of(call, ops) if self.versions is not None else ()
            self.out += [*self.calls.feeds(call), Forward(call, versions=versions)]
            merges = self.program.variant(run.key).merges
            self._after([op for op in ops if op.name not in merges], run.key)

    def _merge(self, merge: Merge) -> None:
        self._arrive(merge.deps)
        call = self.calls.merge(merge)
        if merge.phase == "B":
            self.out.append(Backward(call))
            return
        self.out += [*self.calls.feeds(call), Forward(call)]
        self._after([self.program.variant(merge.key).ops[merge.op]], merge.key)

    def _after(self, ops: Sequence[Op], key: Key) -> None:
        """Buffers take their new value; the loss is noted, and its gradient starts."""
        made = {o for op in ops for o in op.outputs}
        self.out += self.buffers.keep(made, key)
        loss = self.program.graph.loss
        if loss in made:
            ((_, slot),) = self.pieces.made[key, loss]
            variant = self.program.variant(key)
            first = self.device == variant.loss_devices[0]
            self.out.append(Note(slot, first or bool(variant.closing), first, key))

    def _update(self, update: Update) -> None:
        if self.versions is None:
            if not any(isinstance(action, Step) for action in self.out):
                # All gradients are there before the first update, so one step of the optimizer
                # does all; ranks without parameters take part, if only in clipping.
                every = (u for _, u in self.here if isinstance(u, Update))
                self._arrive(d for u in every for d in u.deps)
                self.out.append(Step(update.key))
        elif self.device in update.devices:
            held = self.pieces.lasting[update.parameter]
            slots = tuple(slot for _, slot in held if slot in self.lasting.updated)
            last = self.out[-1] if self.out else None
            if isinstance(last, Step) and last.key == update.key:
                last.slots += slots
            else:
                self.out.append(Step(update.key, slots))


def _outputs(program: Program, pieces: Pieces) -> dict[str, Held]:
    """What the last micro-batch leaves of the graph's outputs on this device."""
    return {
        name: held
        for name in program.graph.outputs
        for (key, of), held in pieces.made.items()
        if of == name and key.micro == program.plan.microbatches - 1
    }
