"""From a graph and a plan to a program.

The schedule says in which order stages of micro-batches run; each of them gives its instructions
(micro.py). Gradients of parameters are synchronised as soon as they are complete. Then parameters are
updated: all of them at the end of a step or, where steps overlap, each as soon as it can be
(versions.py says which weights are used then).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.gradients import active_values, has_backward
from raddle.graph.graph import Graph, Op
from raddle.plans.adapting import resize
from raddle.plans.pipelining import (
    is_asynchronous,
    is_greedy,
    is_threaded,
    micro_sizes,
    placed,
    places,
    schedule_of,
    threads_of,
)
from raddle.plans.plan import Plan
from raddle.plans.regions import add_boxes
from raddle.plans.schedule import Action, Schedule, order
from raddle.plans.validation import validate
from raddle.program.blocks import blocks_of, pulls_of
from raddle.program.collective import recognise
from raddle.program.messages import MessageKind, Subject, all_are_sent
from raddle.program.micro import Micro
from raddle.program.ordering import reorder
from raddle.program.program import (
    Instruction,
    Key,
    Merge,
    Message,
    Move,
    Program,
    Reduce,
    Run,
    Share,
    Update,
)
from raddle.program.settling import Settled, joined, settle
from raddle.program.sharing import shares_from
from raddle.program.signals import SIGNALS, Signals, between
from raddle.program.slicing import check_order, numbered, slices_of
from raddle.program.turns import Turns
from raddle.program.versions import with_versions


def lower(graph: Graph, plan: Plan, *, train: bool = True) -> Program:
    """The program of a plan: `plan.steps` steps of `plan.microbatches` micro-batches.

    The graph is that of the largest micro-batch. Without `train` there is a forward alone.
    """
    validate(plan, graph)
    return _Lowering(graph, plan, active_values(graph) if train else frozenset()).program()


all_are_sent((MessageKind.PUSH, MessageKind.PULL), Subject.PARAMETER)

_Group = tuple[tuple[int, ...], ...]  # the devices that sum, share by share
_Block = tuple[list[Op], dict[str, tuple[Message, ...]]]  # operators; by parameter, its pull


@dataclass
class _Bucket:
    """Gradients that are summed together: of parameters, what several devices hold."""

    shares: dict[str, tuple[Share, ...]] = field(default_factory=dict)
    nbytes: int = 0


class _Lowering:
    """Writes a program; the micro-batches write their parts (micro.Writing)."""

    def __init__(self, graph: Graph, plan: Plan, active: frozenset[str]) -> None:
        self.graph, self.plan, self.active = graph, plan, active
        self.overlap = is_asynchronous(plan)
        self.sizes = micro_sizes(plan, graph)
        self.kinds: dict[tuple[int, tuple[int, ...]], int] = {}  # by samples and workers
        self.settled: list[Settled] = []
        self._kind(self.sizes[0], self._homes())
        self.actions = self._actions()
        self.out: list[Instruction] = []
        self.micros: dict[tuple[int, int], Micro] = {}
        self.updated: dict[str, list[int]] = {}  # parameter -> what wrote it last
        self.kept: dict[tuple[str, tuple[int, ...]], list[int]] = {}  # the same of buffers, where
        # By parameter and step: contributions that its gradient lacks, and what it waits for.
        self.pending: dict[tuple[str, int], int] = {}
        self.reduced: dict[tuple[str, int], list[int]] = {}
        # What actions wait for without reading it, and the key of each action, in this step.
        self.signals = Signals(self.schedule) if self.schedule is not None else None
        self.keys: dict[Action, Key] = {}
        self.buckets: dict[_Group, _Bucket] = {}
        self.sync = plan.syncing
        self.through_server = self.sync.inline
        self.fresh: dict[str, list[int]] = {}  # parameter -> what writes it in this step
        # By slice, its updates, step by step (those of one step: by worker).
        self.clocks: dict[tuple[str, Box], list[list[int]]] = {}
        # Where parameters are divided: by device, what it did last, and by variant, stage and direction
        # blocks of operators, each with the messages that bring its parameters.
        self.latest: dict[int, list[int]] = {}
        self.pulled: dict[tuple[int, int, str], list[_Block]] = {}
        self.turns = self._turns()

    # -- which micro-batches run how ---------------------------------------------------------------

    @cached_property
    def schedule(self) -> Schedule | None:
        return schedule_of(self.plan) if self.plan.stages else None

    def _homes(self) -> tuple[int, ...]:
        return places(self.plan, self.schedule, 0) if self.schedule is not None else ()

    def _kind(self, size: int, at: tuple[int, ...]) -> int:
        """The variant of micro-batches of so many samples on these workers."""
        if (size, at) not in self.kinds:
            graph, plan = self.graph, self.plan
            if size != graph.batch:
                graph, plan = resize(plan, graph, graph.at(size))
            if at:
                own, sums = placed(self.plan, at, plan.tiles), placed(self.plan, at, plan.sums)
                plan = replace(plan, tiles=own, sums=sums)
            self.kinds[size, at] = len(self.settled)
            self.settled.append(settle(graph, plan, self.active))
        return self.kinds[size, at]

    def _actions(self) -> list[list[tuple[Key, Action]]]:
        """By step, or all together where steps overlap, what is done in which order."""
        plan, schedule, count = self.plan, self.schedule, self.plan.microbatches
        if schedule is None:
            kinds = [self._kind(size, ()) for size in self.sizes]
            return [
                [
                    (Key(step, m, kinds[m]), Action(phase, 0, m))
                    for m in range(count)
                    for phase in "FB"
                ]
                for step in range(plan.steps)
            ]
        given = order(schedule)

        def key(step: int, micro: int, counted: int) -> Key:
            return Key(step, micro, self._kind(self.sizes[micro], places(plan, schedule, counted)))

        if self.overlap:
            return [[(key(*divmod(a.micro, count), a.micro), a) for a in given]]
        return [[(key(s, a.micro, a.micro), a) for a in given] for s in range(plan.steps)]

    def _ops(self, settled: Settled, stage: int) -> Sequence[Op]:
        return [op for op in settled.graph.ops if settled.stage_of[op.name] == stage]

    # -- the program -------------------------------------------------------------------------------

    def program(self) -> Program:
        apart = self.schedule is not None and self.schedule.split
        for step, actions in enumerate(self.actions):
            self.keys = {action: key for key, action in actions}
            if self.schedule is not None:
                self.signals = Signals(self.schedule)
            for key, action in actions:
                self._act(key, action, apart=apart)
            if not self.overlap:
                self._update(Key(step))
        instructions: Sequence[Instruction] = self.out
        if is_greedy(self.plan):
            self._refuse_shared()
        if is_threaded(self.plan):
            instructions = reorder(instructions, self.graph, self.plan, threads_of(self.plan))
        if self.overlap:
            instructions = with_versions(instructions, self.graph, self.plan)
        return Program(
            self.graph,
            self.plan,
            tuple(instructions),
            self.active,
            tuple(s.variant for s in self.settled),
            self.shares,
            self.slices,
        )

    def _refuse_shared(self) -> None:
        shared = next((n for n in self._graded if self._shared(n)), None)
        if shared is not None:
            raise InputError(
                f"'{shared}' is on several devices, which would have to update it at the same time: "
                f"use {self.plan.schedule.removesuffix(':greedy')}, or a plan without copies."
            )

    @cached_property
    def _graded(self) -> list[str]:
        values = self.graph.values
        return [n for n in self.settled[0].graders if values[n].role == "parameter"]

    def _act(self, key: Key, action: Action, *, apart: bool) -> None:
        """A stage of a micro-batch, in one direction."""
        settled = self.settled[key.replica]
        at = (key.step, key.micro)
        if at not in self.micros:
            self._await(key.step)
            self.micros[at] = Micro(settled, key, self, self._blocks(settled))
        micro, ops = self.micros[at], self._ops(settled, action.stage)
        micro.signals = self.signals.before(action) if self.signals is not None else []
        first = len(self.out)
        if action.phase == "F":
            for block, pulls in self._whole(key, action, settled, ops):
                micro.forward(block, pulls)
            self._keep(micro, settled, ops)
        elif action.phase == "B":
            for block, pulls in self._whole(key, action, settled, ops):
                micro.backward(block, pulls, weights=not apart)
        else:
            micro.weights(lambda op: settled.stage_of[op.name] == action.stage)
        if self.signals is not None:
            self._signal(key, action, self.signals, first)
        if action.phase != "F":
            self._flush_complete(key)

    def _whole(
        self, key: Key, action: Action, settled: Settled, ops: Sequence[Op]
    ) -> Iterator[tuple[Sequence[Op], list[int]]]:
        """Operators, with what brings their parameters where these are divided.

        That leaves when the block before begins, and not earlier: parameters of two blocks are whole.
        """
        if not self.sync.divided or not self.slices:
            yield ops, []
            return
        blocks = self._blocks_of(key, action, settled, ops)
        coming = self._pull(key, blocks[0])
        for at, (own, _) in enumerate(blocks):
            pulls, coming = coming, self._pull(key, *blocks[at + 1 : at + 2])
            yield own, pulls

    def _blocks_of(
        self, key: Key, action: Action, settled: Settled, ops: Sequence[Op]
    ) -> list[_Block]:
        """In the order of a direction."""
        own = (key.replica, action.stage, action.phase)
        if own not in self.pulled:
            cut = blocks_of(ops, settled.graph, settled.plan, self.slices)
            again = {name for names in self.plan.recompute for name in names}
            if action.phase == "B":
                cut.reverse()
            self.pulled[own] = []
            for block in cut:
                run = [
                    op for op in block
                    if action.phase == "F" or op.name in again
                    or has_backward(op, self.active)
                ]  # fmt: skip
                pulls = pulls_of(run, settled, self.shares, self.slices)
                self.pulled[own].append((block, pulls))
        return self.pulled[own]

    def _pull(self, key: Key, *blocks: _Block) -> list[int]:
        """A home sends its rows when it has updated them, and is done with what comes before."""
        pulls = []
        for name, messages in (item for _, own in blocks for item in own.items()):
            deps = list(self.updated.get(name, ()))
            deps += [i for d in {m.source for m in messages} for i in self.latest.get(d, ())]
            pulls.append(self._move(name, MessageKind.PULL, key, messages, deps))
        return pulls

    def _signal(self, key: Key, action: Action, signals: Signals, first: int) -> None:
        """An action has ended: every device of it tells every device of those that wait for it."""
        signals.end(action, self.out, first)
        if action not in signals.waiting:
            return
        ends = signals.ends.found[action]
        sources = {d for n in ends for d in self.out[n].devices}
        targets = {d for other in signals.waiting[action] for d in self._devices_of(other)}
        sent = between(sources, targets)
        if sent:
            value = self.graph.loss or self.graph.outputs[0]
            signals.sent[action] = self._move(value, SIGNALS[action.phase], key, sent, ends)

    def _devices_of(self, action: Action) -> set[int]:
        """All devices that may compute something for an action."""
        settled = self.settled[self.keys[action].replica]
        ops = self._ops(settled, action.stage)
        cells = (cell for op in ops for cell in settled.merges.get(op.name, ()))
        own = {d for op in ops for d in settled.devices[op.name]}
        return own.union(*(cell.devices for cell in cells))

    def _blocks(self, settled: Settled) -> dict[str, list[Op]]:
        """Recomputed operators, with those of their block and stage: the backward of a stage runs them."""
        found: dict[str, list[Op]] = {}
        for names in map(set, self.plan.recompute):
            block = [op for op in settled.graph.ops if op.name in names]
            for op in block:
                stage = settled.stage_of[op.name]
                found[op.name] = [o for o in block if settled.stage_of[o.name] == stage]
        return found

    def _keep(self, micro: Micro, settled: Settled, ops: Sequence[Op]) -> None:
        """Buffers that these operators write are read by the next micro-batch on the same devices."""
        made = {o: op for op in ops for o in op.outputs}
        for buffer, value in self.graph.updates.items():
            if value in made:
                where = settled.devices[made[value].name]
                self.kept[buffer, where] = micro.ready[value]

    # -- what a micro-batch asks for (micro.Writing) -----------------------------------------------

    def emit(self, instruction: Instruction) -> int:
        self.out.append(instruction)
        if self.sync.divided and isinstance(instruction, Run | Merge):
            self.latest.update((d, [len(self.out) - 1]) for d in instruction.devices)
        return len(self.out) - 1

    def reads(self, name: str, key: Key, op: Op) -> Iterable[int]:
        role = self.graph.values[name].role
        if role == "parameter":
            return () if self.overlap else self.updated.get(name, ())
        if role != "buffer" or name not in self.graph.updates:
            return ()
        writer = self.settled[key.replica].devices[self._writer[name]]
        return self.kept.get((name, writer), ())

    @cached_property
    def _writer(self) -> dict[str, str]:
        """Buffer -> the operator that gives its new value."""
        made = {o: op.name for op in self.graph.ops for o in op.outputs}
        return {buffer: made[value] for buffer, value in self.graph.updates.items()}

    def complete(self, name: str, key: Key, at: int) -> None:
        """Notes a contribution to a parameter's gradient, which is sent off once it is complete."""
        own = (name, key.step)
        self.reduced.setdefault(own, []).append(at)
        self.pending[own] -= 1
        if not self.pending[own]:
            (self._update_now if self.overlap else self._reduce)(name, key)

    def _await(self, step: int) -> None:
        """A step begins: its gradients are awaited."""
        for name in self._graded:
            users = len(self.settled[0].graders[name])
            self.pending.setdefault((name, step), self.plan.microbatches * users)

    # -- parameters --------------------------------------------------------------------------------

    @cached_property
    def shares(self) -> dict[str, tuple[Share, ...]]:
        """Every parameter as boxes, each with the devices that hold it, in any variant."""
        read: dict[str, dict[int, list[Box]]] = {}
        for settled in self.settled:
            for op in settled.graph.ops:
                for operand, name in enumerate(op.inputs):
                    if self.graph.values[name].role == "parameter":
                        tiling = settled.plan.tiles[op.name]
                        add_boxes(read.setdefault(name, {}), op, operand, tiling)
        return {
            name: shares_from(self.graph.values[name].shape, by_device, self.plan)
            for name, by_device in read.items()
        }

    @cached_property
    def slices(self) -> dict[str, tuple[Share, ...]]:
        if not self.sync.sliced or not self.active:
            return {}
        found = slices_of(self.shares, self._graded, self.sync)
        check_order(self.plan.order, found)
        return found

    @cached_property
    def _numbered(self) -> list[tuple[str, Share]]:
        return numbered(self.slices)

    @cached_property
    def _numbers(self) -> dict[str, list[int]]:
        """By parameter, those of its slices."""
        found: dict[str, list[int]] = {}
        for number, (name, _) in enumerate(self._numbered):
            found.setdefault(name, []).append(number)
        return found

    def _turns(self) -> Turns:
        """Of a step: slices that one device alone holds are not summed."""
        order = self.plan.order if self.slices else ()
        return Turns([n for n in order if len(self._numbered[n][1].devices) > 1])

    def _shared(self, name: str) -> tuple[Share, ...]:
        return tuple(s for s in self.shares[name] if s.travels)

    @cached_property
    def _groups(self) -> dict[str, _Group]:
        """Parameter -> who sums it."""
        return {
            n: tuple(dict.fromkeys(s.devices for s in shared))
            for n in self._graded
            if (shared := self._shared(n))
        }

    def _reduce(self, name: str, key: Key) -> None:
        """Sends a complete gradient off: in a bucket that is all-reduced, or to the parameter's home."""
        if self.sync.collective:
            self._sum(name, key)
            return
        if self.sync.sliced:
            self._agree(name, key)
            return
        shared = self._shared(name)
        if not shared:
            return
        if self.through_server:
            deps = self.reduced[name, key.step]
            deps.append(self._push(name, key, shared, deps))
            return
        bucket = self.buckets.setdefault(self._groups[name], _Bucket())
        bucket.shares[name] = shared
        width = self.graph.values[name].dtype.itemsize
        bucket.nbytes += width * sum(s.box.volume for s in shared)
        if bucket.nbytes >= self.plan.bucket:
            self._flush(key, bucket)

    def _push(self, name: str, key: Key, shared: Sequence[Share], deps: Sequence[int]) -> int:
        up = [Message(d, s.home, (s.box,)) for s in shared for d in s.devices if d != s.home]
        return self._move(name, MessageKind.PUSH, key, joined(up), deps)

    def _flush_complete(self, key: Key) -> None:
        """Buckets that nothing more is coming for."""
        groups = self._groups
        waiting = {groups[n] for (n, _), left in self.pending.items() if left and n in groups}
        for group, bucket in self.buckets.items():
            if group not in waiting:
                self._flush(key, bucket)

    def _flush(self, key: Key, bucket: _Bucket) -> None:
        if not bucket.shares:
            return
        names, shares = tuple(bucket.shares), tuple(bucket.shares.values())
        deps = _sorted(i for n in names for i in self.reduced[n, key.step])
        devices = _holders([s for own in shares for s in own])
        at = self.emit(Reduce(names, key, shares, devices, deps))
        for name in names:
            self.reduced[name, key.step].append(at)
        bucket.shares, bucket.nbytes = {}, 0

    def _sum(self, name: str, key: Key) -> None:
        """Slices are summed over their holders when it is their turn, and updated on each."""
        own = self._numbers.get(name, [])
        alone = {n for n in own if len(self._numbered[n][1].devices) == 1}
        for number in (*alone, *self.turns.complete(n for n in own if n not in alone)):
            of, share = self._numbered[number]
            deps = _sorted(self.reduced[of, key.step])
            if number not in alone:
                deps = (self.emit(Reduce((of,), key, ((share,),), share.devices, deps)),)
            done = self.emit(Update(of, key, (share,), share.devices, deps))
            self.fresh.setdefault(of, []).append(done)

    def _agree(self, name: str, key: Key) -> None:
        """Slices go to their homes, are updated there, and come back, one by one."""
        deps, own = self.reduced[name, key.step], self.fresh.setdefault(name, [])
        for share in self.slices[name]:
            if self.sync.synchronous:
                own += self._serve(name, key, share, deps, [])
                continue
            # A worker's gradient is applied as it comes; its answer may have to wait for the slowest.
            steps, alone = self.clocks.setdefault((name, share.box), []), []
            behind = key.step - (self.sync.staleness or 0)
            late = steps[behind] if self.sync.staleness is not None and behind >= 0 else []
            for d in share.devices:
                served = self._serve(name, key, share._replace(devices=(d,)), deps, late)
                alone.append(served[0])
                own += served
            own += late  # for the worker at home
            steps.append(alone)

    def _serve(
        self, name: str, key: Key, share: Share, deps: Iterable[int], late: Iterable[int]
    ) -> list[int]:
        """The update of a slice and, where they are, those that it is sent back to."""
        others = [d for d in share.devices if d != share.home]
        ready = list(deps) if share.home in share.devices else []
        if others:
            up = tuple(Message(d, share.home, (share.box,)) for d in others)
            ready.append(self._move(name, MessageKind.PUSH, key, up, deps))
        done = [self.emit(Update(name, key, (share,), (share.home,), _sorted(ready)))]
        if self.sync.divided:
            return done  # whoever uses it pulls it then
        if others:
            down = tuple(Message(share.home, d, (share.box,)) for d in others)
            done.append(self._move(name, MessageKind.PULL, key, down, [*done, *late]))
        return done

    def _finish(self) -> None:
        """What the next step waits for: its own parameters or, unless they are urgent, all of them."""
        assert not self.turns.left, "all gradients are complete at the end of a step"
        self.updated, self.fresh, self.reduced = self.fresh, {}, {}
        self.turns = self._turns()
        if self.sync.urgent:
            return
        every = [i for own in self.updated.values() for i in own]
        if self.sync.divided:
            for i in every:
                for d in self.out[i].devices:
                    self.latest.setdefault(d, []).append(i)
        seen: set[int] = set()
        for op in self.graph.ops:
            for name in (i for i in op.inputs if i in self.updated):
                holders = set(_holders(self.shares[name]))
                if holders - seen:  # the first that some device uses
                    self.updated[name] = every
                    seen |= holders

    def _update(self, key: Key) -> None:
        """In the order in which gradients were complete: the last layers first."""
        if self.sync.sliced:
            self._finish()
            return
        for (name, _), deps in sorted(self.reduced.items(), key=lambda item: max(item[1])):
            self.updated[name] = [self._write(name, key, deps)]
        self.reduced = {}

    def _write(self, name: str, key: Key, deps: Iterable[int]) -> int:
        own = self.shares[name]
        server = self.through_server
        devices = tuple(sorted({s.home for s in own})) if server else _holders(own)
        done = self.emit(Update(name, key, own, devices, _sorted(deps)))
        down = [Message(s.home, d, (s.box,)) for s in own for d in s.devices if d != s.home]
        if server and down:
            done = self._move(name, MessageKind.PULL, key, joined(down), [done])
        return done

    def _update_now(self, name: str, key: Key) -> None:
        """Where steps overlap, a parameter is summed and updated as soon as its gradient is complete."""
        deps, shared = self.reduced[name, key.step], self._shared(name)
        if shared and self.through_server:
            deps = [*deps, self._push(name, key, shared, deps)]
        elif shared:
            reduce = Reduce((name,), key, (shared,), _holders(shared), _sorted(deps))
            deps = [*deps, self.emit(reduce)]
        self._write(name, Key(key.step), deps)

    def _move(
        self, value: str, what: MessageKind, key: Key, messages: tuple[Message, ...],
        deps: Iterable[int],
    ) -> int:  # fmt: skip
        count = self.plan.devices
        messages = tuple(sorted(messages, key=lambda m: ((m.target - m.source) % count, m)))
        return self.emit(Move(value, what, key, messages, recognise(messages), _sorted(deps)))


def _sorted(deps: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(deps)))


def _holders(shares: Iterable[Share]) -> tuple[int, ...]:
    return tuple(sorted({d for s in shares for d in s.devices}))
