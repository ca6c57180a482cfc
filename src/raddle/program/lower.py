"""From a graph and a plan to a program.

Forward, operator by operator: run its tiles, merge what is partial, send what other devices need.
Backward, in reverse: gradients come back on the same edges and are summed at the owner; those of parameters
are synchronised as soon as they are complete. Then parameters are updated. Transfers are what consumers
need less what they hold, so they are minimal, and nothing goes to a device twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raddle.errors import InputError
from raddle.graph.box import Box, merge
from raddle.graph.graph import Graph, Op
from raddle.plan.plan import Plan, validate
from raddle.plan.tiling import Tiling
from raddle.program.closing import closing
from raddle.program.collective import recognise
from raddle.program.holding import Holding, always_local, fetch, holding_of
from raddle.program.merging import is_local_statistics, is_partial, place_merge
from raddle.program.program import (
    Cell,
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
from raddle.program.sharing import operand_regions, shares_of


def lower(graph: Graph, plan: Plan, *, train: bool = True) -> Program:
    """The program of a plan: `plan.steps` steps of `plan.microbatches` micro-batches.

    The graph is that of one micro-batch. Without `train` there is a forward alone.
    """
    validate(plan, graph)
    return _Lowering(graph, plan, active_values(graph) if train else set()).program()


_Bucket = list[tuple[str, tuple[Share, ...]]]  # parameters with what several devices hold of them


class _Lowering:
    def __init__(self, graph: Graph, plan: Plan, active: set[str]) -> None:
        self.graph, self.plan, self.active = graph, plan, active
        self.producer = {o: op for op in graph.ops for o in op.outputs}
        self.consumers: dict[str, list[tuple[Op, int]]] = {}
        for op in graph.ops:
            for i, name in enumerate(op.inputs):
                self.consumers.setdefault(name, []).append((op, i))
        self.merges: dict[str, tuple[Cell, ...]] = {}
        self.partial_messages: dict[str, tuple[Message, ...]] = {}
        self.messages: dict[str, tuple[Message, ...]] = {}  # of a value, forward
        self.returned: dict[str, tuple[Message, ...]] = {}  # of its gradient, backward
        self.out: list[Instruction] = []
        self.devices = {
            op.name: tuple(sorted(set(plan.tiles[op.name].devices))) for op in graph.ops
        }
        self.uses: dict[str, int] = {}  # how many operators contribute to a value's gradient
        for op in graph.ops:
            if any(o in self.active for o in op.outputs):
                for name in set(op.inputs) & self.active:
                    self.uses[name] = self.uses.get(name, 0) + 1
        self.through_server = plan.sync.startswith("server")
        self.buckets: dict[tuple[tuple[int, ...], ...], _Bucket] = {}  # by the devices that sum
        self.block: dict[str, list[Op]] = {}  # recomputed operators, with those of their block
        for names in map(set, plan.recompute):
            block = [op for op in graph.ops if op.name in names]
            self.block.update((op.name, block) for op in block)
        self.shares = self._shares()
        self.closing = closing(
            graph, plan, active, lambda op: self._is_partial(op, plan.tiles[op.name])
        )

    def program(self) -> Program:
        for op in self.graph.ops:
            self._settle(op)
        updated: dict[
            str, list[int]
        ] = {}  # parameter or buffer -> the instruction that wrote it last
        for step in range(self.plan.steps):
            reduced: dict[str, list[int]] = {}  # parameter -> what its gradient waits for
            for micro in range(self.plan.microbatches):
                self._micro(Key(step, micro), updated, reduced)
            self._update(Key(step), reduced, updated)
        return Program(
            self.graph, self.plan, tuple(self.out), frozenset(self.active), self.merges, self.shares,
            self.closing,
        )  # fmt: skip

    # -- what goes where, once for all repetitions ---------------------------------------------

    def _settle(self, op: Op) -> None:
        """Settles where an operator's results are merged and which messages carry them."""
        tiling = self.plan.tiles[op.name]
        if self._is_partial(op, tiling):
            self._settle_merge(op, tiling)
        for k, name in enumerate(op.outputs):
            self.messages[name], self.returned[name] = self._needs(op, k, name)
            if self.messages[name] and is_local_statistics(op, self.plan.bn):
                target = self.messages[name][0].target
                raise InputError(
                    f"with bn: local, device {target} normalises samples whose statistics '{op.name}' "
                    "takes elsewhere: give both the same tiles, or use bn: global."
                )

    def _holding(self, op: Op, output: int) -> Holding:
        if op.name in self.merges:
            return Holding([(c.box, c.devices) for c in self.merges[op.name]])
        return holding_of(op.space, self.plan.tiles[op.name], output)

    def _is_partial(self, op: Op, tiling: Tiling) -> bool:
        return is_partial(op, tiling, self.plan.bn)

    def _settle_merge(self, op: Op, tiling: Tiling) -> None:
        readers = {
            d
            for o in op.outputs
            for c, _ in self.consumers.get(o, [])
            for d in self.devices[c.name]
        }
        width = self.graph.values[op.outputs[0]].dtype.itemsize
        placed, messages = place_merge(
            op,
            tiling,
            sorted(readers),
            width,
            closes=op.name in self.closing,
            where=self.plan.sums.get(op.name),
        )
        self.merges[op.name], self.partial_messages[op.name] = placed, messages

    def _needs(
        self, op: Op, output: int, name: str
    ) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """Messages that bring a value to its consumers, and those that bring its gradient back."""
        wanted: dict[int, list[Box]] = {}
        plainly: dict[int, list[Box]] = {}  # by consumers that give no gradient
        readers = list(self.consumers.get(name, []))
        for buffer, value in self.graph.updates.items():
            if value == name:  # whoever reads the buffer in the next step needs what it holds then
                readers += self.consumers.get(buffer, [])
        for consumer, operand in readers:
            if self._always_local(op, output, consumer, operand):
                continue
            graded = name in consumer.inputs and name in self.active
            graded = graded and any(o in self.active for o in consumer.outputs)
            needs = wanted if graded else plainly
            _add_regions(needs, consumer, operand, self.plan.tiles[consumer.name])
        if not wanted and not plainly:
            return (), ()
        holding, have = self._holding(op, output), dict[int, list[Box]]()
        back = self._fetched(holding, wanted, have)
        rest = self._fetched(holding, plainly, have)
        return _joined(back + rest), tuple(Message(m.target, m.source, m.boxes) for m in back)

    def _always_local(self, op: Op, output: int, consumer: Op, operand: int) -> bool:
        if op.name in self.merges:
            return False
        tiling, target = self.plan.tiles[op.name], self.plan.tiles[consumer.name]
        access = consumer.space.operands[operand]
        return always_local(tiling, op.space, output, target, access)

    def _fetched(
        self, holding: Holding, needs: dict[int, list[Box]], have: dict[int, list[Box]]
    ) -> list[Message]:
        messages = []
        for device in sorted(needs):
            regions = list(dict.fromkeys(needs[device]))
            taken = fetch(holding, device, regions, have.setdefault(device, []))
            messages += [Message(s, device, tuple(boxes)) for s, boxes in sorted(taken.items())]
        return messages

    # -- instructions --------------------------------------------------------------------------

    def _emit(self, instruction: Instruction) -> int:
        self.out.append(instruction)
        return len(self.out) - 1

    def _move(
        self, value: str, what: str, key: Key, messages: tuple[Message, ...], deps: Iterable[int]
    ) -> int:
        # Each device sends to its next neighbour first, so that no receiver is everybody's first.
        count = self.plan.devices
        messages = tuple(sorted(messages, key=lambda m: ((m.target - m.source) % count, m)))
        pattern = recognise(messages)
        return self._emit(Move(value, what, key, messages, pattern, _sorted(deps)))

    def _micro(
        self, key: Key, updated: dict[str, list[int]], reduced: dict[str, list[int]]
    ) -> None:
        """Forward and backward of one micro-batch."""
        ready: dict[str, list[int]] = {}  # value -> the instructions that make it available
        ran: dict[str, int] = {}
        for op in self.graph.ops:
            deps = {i for name in op.inputs for i in ready.get(name, [])}
            deps |= {i for name in op.inputs for i in updated.get(name, [])}
            ran[op.name] = at = self._emit(
                Run(op.name, "F", key, self.devices[op.name], tuple(sorted(deps)))
            )
            if op.name in self.merges:
                at = self._merge(op, "F", key, [at])
            for name in op.outputs:
                ready[name] = [at]
                if self.messages[name]:
                    ready[name].append(
                        self._move(name, "activation", key, self.messages[name], [at])
                    )
        for buffer, value in self.graph.updates.items():
            updated[buffer] = ready[value]
        self._backward(key, ran, reduced)

    def _merge(self, op: Op, phase: str, key: Key, deps: Sequence[int]) -> int:
        placed, messages = self.merges[op.name], self.partial_messages[op.name]
        devices = tuple(sorted({d for c in placed for d in c.devices}))
        value = op.outputs[0]
        if phase == "F":
            after = list(deps)
            if messages:
                after.append(self._move(value, "partial", key, messages, deps))
            return self._emit(Merge(op.name, "F", key, placed, devices, tuple(after)))
        at = self._emit(Merge(op.name, "B", key, placed, devices, _sorted(deps)))
        if messages and op.name not in self.closing:
            back = tuple(Message(m.target, m.source, m.boxes, m.part) for m in messages)
            return self._move(value, "partial gradient", key, back, [at])
        return at

    def _backward(self, key: Key, ran: dict[str, int], reduced: dict[str, list[int]]) -> None:
        """Gradients leave as soon as they are complete: the last consumer's backward sends them on."""
        given: dict[
            str, list[int]
        ] = {}  # value -> the instructions that contribute to its gradient
        left = dict(self.uses)
        later: list[
            tuple[Op, list[int]]
        ] = []  # operators whose parameters wait for their gradients
        again: dict[str, int] = {}  # recomputed operators
        for op in reversed(self.graph.ops):
            outputs = [o for o in op.outputs if o in self.active]
            if not outputs:
                continue
            if op.name in self.block and op.name not in again:
                self._recompute(self.block[op.name], key, ran, again)
            deps = [again.get(op.name, ran[op.name])]
            deps += [i for name in outputs for i in given.get(name, [])]
            sent = False
            if op.name in self.merges:
                deps.append(self._merge(op, "B", key, deps))
                sent = bool(self.partial_messages[op.name]) and op.name not in self.closing
            names = [name for name in dict.fromkeys(op.inputs) if name in self.active]
            parameters = [n for n in names if self.graph.values[n].role == "parameter"]
            apart = self.plan.split_backward and bool(parameters)
            if len(parameters) < len(names) or not apart:
                at = self._emit(Run(op.name, "B", key, self.devices[op.name], _sorted(deps)))
                deps = [*deps, at]
            if apart:
                later.append((op, deps))
            for name in names:
                left[name] -= 1
                if name in parameters:
                    if not apart:
                        self._complete(name, key, at, reduced, done=not left[name])
                    continue
                given.setdefault(name, []).append(at)
                if not left[name] and self.returned[name]:
                    messages = self.returned[name]
                    given[name].append(self._move(name, "gradient", key, messages, given[name]))
                    sent = True
            if sent:  # others wait for these; gradients of parameters can wait
                self._weights(key, later, reduced)
        self._weights(key, later, reduced)
        if key.micro == self.plan.microbatches - 1:
            for bucket in self.buckets.values():
                self._flush(key, bucket, reduced)

    def _recompute(
        self, block: Sequence[Op], key: Key, ran: dict[str, int], again: dict[str, int]
    ) -> None:
        """Runs a block forward once more, as far as its backward needs it."""
        wanted: set[str] = set()
        needed = []
        for op in reversed(block):
            if any(o in self.active or o in wanted for o in op.outputs):
                needed.append(op)
                wanted.update(op.inputs)
        for op in reversed(needed):
            deps = [ran[op.name]]
            deps += [
                again[p.name] for i in op.inputs if (p := self.producer.get(i)) and p.name in again
            ]
            again[op.name] = self._emit(
                Run(op.name, "R", key, self.devices[op.name], _sorted(deps))
            )

    def _weights(
        self, key: Key, later: list[tuple[Op, list[int]]], reduced: dict[str, list[int]]
    ) -> None:
        """Gradients of the parameters of operators whose activations have theirs."""
        for op, deps in later:
            at = self._emit(Run(op.name, "W", key, self.devices[op.name], _sorted(deps)))
            for name in dict.fromkeys(op.inputs):
                if name in self.active and self.graph.values[name].role == "parameter":
                    users = (reader for reader, _ in self.consumers[name])
                    first = next(u for u in users if any(o in self.active for o in u.outputs))
                    self._complete(name, key, at, reduced, done=op is first)
        later.clear()

    def _complete(
        self, name: str, key: Key, at: int, reduced: dict[str, list[int]], *, done: bool
    ) -> None:
        """Notes a contribution to a parameter's gradient, which is sent off once it is complete."""
        reduced.setdefault(name, []).append(at)
        if done and key.micro == self.plan.microbatches - 1:
            self._reduce(name, key, reduced)

    # -- parameters ----------------------------------------------------------------------------

    def _shares(self) -> dict[str, tuple[Share, ...]]:
        """Every parameter as boxes, each with the devices that hold it."""
        users: dict[str, list[tuple[Op, int]]] = {}
        for op in self.graph.ops:
            for operand, name in enumerate(op.inputs):
                if self.graph.values[name].role == "parameter":
                    users.setdefault(name, []).append((op, operand))
        return {
            name: shares_of(self.graph.values[name].shape, own, self.plan.tiles, self.plan)
            for name, own in users.items()
        }

    def _reduce(self, name: str, key: Key, reduced: dict[str, list[int]]) -> None:
        """Sends a complete gradient off: in a bucket that is all-reduced, or to the parameter's home."""
        shared = tuple(s for s in self.shares[name] if len({*s.devices, s.home} - {-1}) > 1)
        if not shared:
            return
        if self.through_server:
            up = [Message(d, s.home, (s.box,)) for s in shared for d in s.devices if d != s.home]
            reduced[name].append(self._move(name, "push", key, _joined(up), _sorted(reduced[name])))
            return
        together = tuple(dict.fromkeys(s.devices for s in shared))
        bucket = self.buckets.setdefault(together, [])
        bucket.append((name, shared))
        width = {n: self.graph.values[n].dtype.itemsize for n, _ in bucket}
        if sum(s.box.volume * width[n] for n, own in bucket for s in own) >= self.plan.bucket:
            self._flush(key, bucket, reduced)

    def _flush(self, key: Key, bucket: _Bucket, reduced: dict[str, list[int]]) -> None:
        if not bucket:
            return
        names, shares = tuple(n for n, _ in bucket), tuple(own for _, own in bucket)
        deps = _sorted(i for n in names for i in reduced[n])
        devices = _holders([s for own in shares for s in own])
        at = self._emit(Reduce(names, key, shares, devices, deps))
        for name in names:
            reduced[name].append(at)
        bucket.clear()

    def _update(
        self, key: Key, reduced: dict[str, list[int]], updated: dict[str, list[int]]
    ) -> None:
        """In the order in which gradients were complete: the last layers first."""
        for name, deps in sorted(reduced.items(), key=lambda item: max(item[1])):
            own = self.shares[name]
            server = self.through_server
            devices = tuple(sorted({s.home for s in own})) if server else _holders(own)
            done = self._emit(Update(name, key, own, devices, tuple(sorted(deps))))
            down = [Message(s.home, d, (s.box,)) for s in own for d in s.devices if d != s.home]
            if server and down:
                done = self._move(name, "pull", key, _joined(down), [done])
            updated[name] = [done]


def _add_regions(needs: dict[int, list[Box]], op: Op, operand: int, tiling: Tiling) -> None:
    for device, region in operand_regions(op, operand, tiling):
        if region is not None:
            needs.setdefault(device, []).append(region)


def active_values(graph: Graph) -> set[str]:
    """Values that depend on a parameter and that the loss depends on."""
    if graph.loss is None:
        return set()
    found = {graph.loss}
    differentiable = graph.differentiable()
    for op in reversed(graph.ops):
        if any(o in found for o in op.outputs) and op.label != "detach" and op.kind != "running":
            found.update(i for i in op.inputs if i in differentiable)
    return found & differentiable


def _sorted(deps: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(deps)))


def _holders(shares: Sequence[Share]) -> tuple[int, ...]:
    return tuple(sorted({d for s in shares for d in s.devices}))


def _joined(messages: Sequence[Message]) -> tuple[Message, ...]:
    """One message for each pair of devices (and part)."""
    together: dict[tuple[int, int, int], list[Box]] = {}
    for m in messages:
        together.setdefault((m.source, m.target, m.part), []).extend(m.boxes)
    return tuple(Message(s, t, tuple(merge(b)), p) for (s, t, p), b in sorted(together.items()))
