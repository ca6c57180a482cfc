"""From a program to tasks on resources, as arrays.

An instruction is one task for each device that takes part; a message is a task that holds the links of its
route; an all-reduce starts when its last participant is ready, and then each participant holds its part of
the ring. A device computes in the program's order, and sums of slices leave it in that order too, so that
none overtakes another; `overtaking` lets the most urgent go first instead, which gives an order that is
worth having (searches/order.py). Where communication takes a device's time (costs/handling.py), all of it
stands in the program's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.collectives import all_reduce_seconds, hops, sent_by_each
from raddle.costs.compute import Compute, memory_speed, pass_seconds
from raddle.costs.handling import handles, message_seconds, sum_seconds
from raddle.costs.links import transfer_seconds
from raddle.costs.natives import tiled_alike
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.graph import Op
from raddle.plans.optimizers import optimizer_costs
from raddle.plans.tiling import Grid
from raddle.program.merging import merged_bytes
from raddle.program.program import (
    Merge,
    Move,
    Program,
    Reduce,
    Run,
    Update,
    message_bytes,
    summed_bytes,
)

Array = np.ndarray
LONGEST = 4e9  # seconds, in nanoseconds less than half of 64 bits


@dataclass(frozen=True)
class Tasks:
    """Arrays over tasks; resources are the devices, then the links of the cluster."""

    duration: Array  # nanoseconds
    first: Array  # a resource or -1
    second: Array
    instruction: Array  # that the task belongs to
    device: Array  # where it ends: that computes, or receives
    source: Array  # where it comes from, of messages; else the device
    nbytes: Array  # that cross devices
    urgency: Array  # of messages that may overtake others; 0 of all else
    waits: Array
    pointer: Array
    successor: Array
    resources: int


class _Builder:
    """Collects tasks and what they wait for, block by block."""

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        profile: Profile | None,
        *,
        overtaking: bool = False,
    ) -> None:
        self.program, self.cluster, self.overtaking = program, cluster, overtaking
        self.count = 0
        self.columns: dict[str, list[Array]] = {
            name: []
            for name in (
                "duration", "first", "second", "instruction", "device", "source", "nbytes", "urgency",
            )
        }  # fmt: skip
        self.edges: list[tuple[Array, Array]] = []
        self.places: list[Array] = []  # by instruction: the task that ends it on each device, or -1
        self.last = np.full(program.plan.devices, -1, np.int64)  # computed last on each device
        plan = program.plan
        self.compute = Compute(
            program.graph, program.active, profile, split=plan.split_backward, bn=plan.bn,
            natives=tiled_alike(program.graph, plan.tiles) if profile else None,
        )  # fmt: skip
        # Slices wait for a link without holding up others: the first first, or the most urgent.
        urgent = program.plan.syncing.urgent
        self.urgency = {
            name: 1 + at if urgent else 1
            for name, at in program.priority.items()
            if name in program.slices
        }
        self.handles = handles(cluster)
        self.due: dict[int, Array] = {}  # by move and device, what taking in its messages takes
        self.runs: dict[tuple[str, str, int], tuple[Array, Array]] = {}
        self.moves: dict[object, tuple[Array, ...]] = {}

    def block(
        self, instruction: int, duration: Array, first: Array, second: Array, device: Array,
        source: Array, nbytes: Array, urgency: int = 0,
    ) -> Array:  # fmt: skip
        size = len(duration)
        number, rank = np.full(size, instruction), np.full(size, urgency)
        given = (duration, first, second, number, device, source, nbytes, rank)
        for name, values in zip(self.columns, given, strict=True):
            self.columns[name].append(np.asarray(values, np.int64))
        ids = np.arange(self.count, self.count + size)
        self.count += size
        return ids

    def wait(self, tasks: Array, on: Array) -> None:
        """Each task waits for the one beside it; -1 is none."""
        real = on >= 0
        if real.any():
            self.edges.append((tasks[real], on[real]))

    def place(self, devices: Array, tasks: Array) -> None:
        where = np.full(self.program.plan.devices, -1, np.int64)
        where[devices] = tasks
        self.places.append(where)

    def tasks(self) -> Tasks:
        column = {name: np.concatenate(blocks) for name, blocks in self.columns.items()}
        later = np.concatenate([e[0] for e in self.edges]) if self.edges else np.empty(0, np.int64)
        earlier = (
            np.concatenate([e[1] for e in self.edges]) if self.edges else np.empty(0, np.int64)
        )
        waits = np.bincount(later, minlength=self.count)
        order = np.argsort(earlier, kind="stable")
        pointer = np.concatenate([[0], np.cumsum(np.bincount(earlier, minlength=self.count))])
        return Tasks(
            **column,
            waits=waits,
            pointer=pointer,
            successor=later[order].astype(np.int32),
            resources=self.program.plan.devices + len(self.cluster.links),
        )

    # -- one kind of instruction each -------------------------------------------------------------

    def on_devices(
        self,
        number: int,
        devices: Array,
        duration: Array,
        deps: Iterable[int],
        *,
        apart: bool = False,
    ) -> None:
        """A task on each device, after what the device computed before, unless it stands apart."""
        deps = tuple(deps)
        ids = self.block(
            number,
            duration + self.taken_in(devices, deps),
            devices,
            np.full(len(devices), -1),
            devices,
            devices,
            np.zeros(len(devices)),
        )
        if not apart:
            self.wait(ids, self.last[devices])
            self.last[devices] = ids
        for dep in deps:
            self.wait(ids, self.places[dep][devices])
        self.place(devices, ids)

    def taken_in(self, devices: Array, deps: Iterable[int]) -> Array:
        """What has come and was not waited for before is taken in by the first that needs it."""
        total = np.zeros(len(devices), np.int64)
        for dep in deps:
            if dep in self.due:
                total += self.due[dep][devices]
                self.due[dep][devices] = 0
        return total

    def run(self, number: int, run: Run) -> None:
        known = self.runs.get((run.op, run.phase, run.key.replica))
        if known is None:
            seconds = self._run_seconds(run)
            known = np.array(list(seconds)), nanoseconds(list(seconds.values()))
            self.runs[run.op, run.phase, run.key.replica] = known
        self.on_devices(number, *known, run.deps)

    def _run_seconds(self, run: Run) -> dict[int, float]:
        """By device, the seconds of its tiles."""
        variant = self.program.variant(run.key)
        op, tiling = variant.ops[run.op], variant.tiles[run.op]
        seconds = dict.fromkeys(run.devices, 0.0)
        if isinstance(tiling, Grid) and _alike(
            op, tiling
        ):  # tiles differ by the kind of device alone
            box = tiling.boxes[0]
            for d in tiling.devices:
                seconds[d] += self.compute.seconds(op, box, run.phase, self.cluster.devices[d])
            return seconds
        for tile in tiling.tiles:
            device = self.cluster.devices[tile.device]
            seconds[tile.device] += self.compute.seconds(op, tile.box, run.phase, device)
        return seconds

    def merge(self, number: int, merge: Merge) -> None:
        width = self.program.width(self.program.variant(merge.key).ops[merge.op].outputs[0])
        seconds = dict.fromkeys(merge.devices, 0.0)
        for cell in merge.cells:
            for d in cell.devices:
                seconds[d] += self._pass(d, merged_bytes(cell, width))
        self.on_devices(
            number, np.array(list(seconds)), nanoseconds(list(seconds.values())), merge.deps
        )

    def update(self, number: int, update: Update) -> None:
        passes = optimizer_costs(self.program.plan.optimizer).passes
        width = self.program.width(update.parameter)
        seconds = dict.fromkeys(update.devices, 0.0)
        for share in update.shares:
            amount = passes * share.box.volume * width
            for d in share.updaters:
                seconds[d] += self._pass(d, amount)
        # Slices are updated as they come, between or beside what a device computes.
        apart = update.parameter in self.program.slices
        self.on_devices(
            number, np.array(list(seconds)), nanoseconds(list(seconds.values())), update.deps,
            apart=apart,
        )  # fmt: skip

    def _pass(self, device: int, nbytes: int) -> float:
        """Seconds in which a device passes over so many bytes."""
        own = self.cluster.devices[device]
        return float(pass_seconds(nbytes, memory_speed(own), own.overhead))

    def move(self, number: int, move: Move) -> None:
        key = (move.value, move.what, id(move.messages))
        if key not in self.moves:
            self.moves[key] = self._routes(move)
        duration, first, second, source, target, nbytes = self.moves[key]
        urgency = self.urgency.get(move.value, 0) if move.what.of_parameters else 0
        ids = self.block(number, duration, first, second, target, source, nbytes, urgency)
        for dep in move.deps:
            self.wait(ids, self.places[dep][source])
        if self.handles and urgency:
            ids = self._slices_handled(number, move.deps, source, target, nbytes, ids)
        elif self.handles:
            self._handled(number, source, target, nbytes, ids)
        self.join(number, target, ids)

    def _handled(
        self, number: int, source: Array, target: Array, nbytes: Array, ids: Array
    ) -> None:
        """A source sends one message after the other, after all that it did before."""
        for i, (device, ns) in enumerate(
            zip(source, self._handling(source, nbytes, sliced=False), strict=True)
        ):
            if ns:
                own, none = np.array([device]), np.array([-1])
                task = self.block(number, np.array([ns]), own, none, own, own, np.zeros(1))
                self.wait(task, self.last[own])
                self.last[device] = task[0]
            self.wait(ids[i : i + 1], self.last[device][None])
        taken = self._handling(target, nbytes, sliced=False)
        devices = self.program.plan.devices
        self.due[number] = np.bincount(target, taken, devices).astype(np.int64)

    def _slices_handled(
        self, number: int, deps: Sequence[int], source: Array, target: Array, nbytes: Array,
        ids: Array,
    ) -> Array:  # fmt: skip
        """Slices are sent and taken in by threads of their own, between what their devices compute."""
        sent = self._beside(number, source, self._handling(source, nbytes, sliced=True))
        for dep in deps:
            self.wait(sent, self.places[dep][source])
        self.wait(ids, sent)
        taken = self._beside(number, target, self._handling(target, nbytes, sliced=True))
        self.wait(taken, ids)
        return taken

    def _beside(self, number: int, devices: Array, duration: Array) -> Array:
        """Tasks that devices do between others, when they can."""
        none, nothing = np.full(len(devices), -1), np.zeros(len(devices))
        return self.block(number, np.maximum(1, duration), devices, none, devices, devices, nothing)

    def _handling(self, devices: Array, nbytes: Array, *, sliced: bool) -> Array:
        seconds = [
            message_seconds(self.cluster.devices[d], int(n), sliced=sliced)
            for d, n in zip(devices, nbytes, strict=True)
        ]
        return nanoseconds(seconds, least=0)

    def _routes(self, move: Move) -> tuple[Array, ...]:
        rows = []
        base = self.program.plan.devices
        for message in move.messages:
            route = self.cluster.route(message.source, message.target)
            nbytes = message_bytes(self.program, move, message)
            links = [base + r for r in route.resources] + [-1]
            seconds = transfer_seconds(route.latency, route.bandwidth, nbytes)
            rows.append((seconds, links[0], links[1], message.source, message.target, nbytes))
        times, *rest = zip(*rows, strict=True)
        return (nanoseconds(times), *(np.array(column) for column in rest))

    def join(self, number: int, targets: Array, ids: Array) -> None:
        """What arrives on a device in several messages is there with the last of them."""
        devices, inverse, counts = np.unique(targets, return_inverse=True, return_counts=True)
        ends = np.full(len(devices), -1, np.int64)
        single = counts[inverse] == 1
        ends[inverse[single]] = ids[single]
        several = np.flatnonzero(counts > 1)
        if len(several):
            none = np.full(len(several), -1)
            at = devices[several]
            joins = self.block(
                number, np.zeros(len(several)), none, none, at, at, np.zeros(len(several))
            )
            ends[several] = joins
            slot = np.full(len(devices), -1)
            slot[several] = joins
            waiting = slot[inverse]
            self.edges.append((waiting[waiting >= 0], ids[waiting >= 0]))
        self.place(devices, ends)

    def reduce(self, number: int, reduce: Reduce) -> None:
        devices, ids = [], []
        of_a_slice = bool(self.program.slices)
        urgency = self.urgency.get(reduce.parameters[0], 0) if self.overtaking else 0
        for members, amount in summed_bytes(self.program, reduce).items():
            ring = np.array(members)
            one = np.array([-1])
            gate = self.block(number, np.zeros(1), one, one, ring[:1], ring[:1], np.zeros(1))
            for dep in reduce.deps:
                self.wait(np.repeat(gate, len(ring)), self.places[dep][ring])
            if self.handles:
                self.take_part(number, ring, amount, gate)
            elif of_a_slice and not self.overtaking:  # leaves where the program has it, not before
                self.wait(np.repeat(gate, len(ring)), self.last[ring])
            duration, first, second, each = self._ring(members, amount)
            tasks = self.block(number, duration, first, second, ring, ring, each, urgency)
            self.wait(tasks, np.repeat(gate, len(ring)))
            devices.append(ring)
            ids.append(tasks)
        self.join(number, np.concatenate(devices), np.concatenate(ids))

    def take_part(self, number: int, ring: Array, amount: int, gate: Array) -> None:
        """A sum begins when all have come to it in their programs, and takes time from each as it goes."""
        self.wait(np.repeat(gate, len(ring)), self.last[ring])
        seconds = [sum_seconds(self.cluster.devices[d], len(ring), amount) for d in ring]
        cost = nanoseconds(seconds, least=0)
        own, cost = ring[cost > 0], cost[cost > 0]
        if len(own):
            none = np.full(len(own), -1)
            ids = self.block(number, cost, own, none, own, own, np.zeros(len(own)))
            self.wait(ids, self.last[own])
            self.last[own] = ids

    def _ring(self, ring: tuple[int, ...], amount: int) -> tuple[Array, Array, Array, Array]:
        key = ("ring", repr((ring, amount)))
        if key not in self.moves:
            base = self.program.plan.devices
            seconds = all_reduce_seconds(self.cluster, ring, amount)
            links = [
                [base + r for r in self.cluster.route(a, b).resources] + [-1] for a, b in hops(ring)
            ]
            each = sent_by_each(len(ring), amount)
            # Hops of a ring that share a link use it together, so only the first holds it.
            held = held_once([link for pair in links for link in pair[:2]])
            first, second = held[::2], held[1::2]
            times = np.repeat(nanoseconds([seconds]), len(ring))
            self.moves[key] = times, np.array(first), np.array(second), np.array(each)
        return self.moves[key]  # type: ignore[return-value]


def _alike(op: Op, grid: Grid) -> bool:
    """Whether all tiles do the same work: equal shapes, and no halo that the border cuts off."""
    split = {d for d, cuts in enumerate(grid.cuts) if len(cuts) > 2}
    indices = [index for access in op.space.operands for index in access.indices]
    once = any(access.once for access in op.space.operands) and split & set(op.space.reduced)
    return (
        grid.uniform
        and not once
        and all(
            index.plain is not None or not split & {term.dim for term in index.terms}
            for index in indices
        )
    )


def held_once(links: Sequence[int]) -> list[int]:
    seen: set[int] = set()
    result = []
    for link in links:
        result.append(-1 if link in seen else link)
        seen.add(link)
    return result


def nanoseconds(seconds: Sequence[float], *, least: int = 1) -> Array:
    """At least one: a task on a resource takes time."""
    given = np.asarray(seconds, np.float64)
    if not (given <= LONGEST).all():
        raise InputError(
            f"a task would take {given.max():g} s: look for a wrong figure in the cluster or the profile."
        )
    return np.maximum(least, np.rint(given * 1e9)).astype(np.int64)


def build_tasks(
    program: Program,
    cluster: Cluster,
    profile: Profile | None = None,
    *,
    overtaking: bool = False,
) -> Tasks:
    b = _Builder(program, cluster, profile, overtaking=overtaking)
    for number, instruction in enumerate(program.instructions):
        if isinstance(instruction, Run):
            b.run(number, instruction)
        elif isinstance(instruction, Move):
            b.move(number, instruction)
        elif isinstance(instruction, Merge):
            b.merge(number, instruction)
        elif isinstance(instruction, Reduce):
            b.reduce(number, instruction)
        else:
            b.update(number, instruction)
    return b.tasks()
