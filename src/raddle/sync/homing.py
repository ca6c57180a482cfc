"""The slices of a model's parameters at their homes: gradients are handed in, updated rows come back.

Unused parameters. A rank without a gradient hands in negative zeros: the one number that changes no bit of
what it is added to. So a sum whose first element is a negative zero was handed in by nobody, if whoever has
a gradient never begins it with one: the slice is left as it is and comes back. That needs no message more,
and nobody has to know beforehand what the others lack.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from raddle.plans.sync import Sync
from raddle.sync.applying import Applying
from raddle.sync.item import Item
from raddle.sync.states import State, cut, gather, join
from raddle.sync.summing import Summing
from raddle.sync.synchroniser import Synchroniser
from raddle.transport.processes import Processes

Exchange = Callable[[Any], list[Any]]
Note = Callable[[str, str, float, float], None]
Part = tuple[int, slice | None]  # a parameter's number, and rows of it


class Updating(Applying):
    """Leaves out what nobody has handed in; `looks` says where that may be."""

    def __init__(
        self, optimizer: Optimizer, rows: Mapping[int, nn.Parameter], *,
        times: Mapping[int, int] | None, looks: Callable[[int], bool],
    ) -> None:  # fmt: skip
        super().__init__(optimizer, rows, times=times)
        self._looks = looks

    def __call__(self, number: int, clock: int, gradient: Tensor) -> None:
        if self._looks(number) and absent(gradient):
            self._pass(clock)
        else:
            super().__call__(number, clock, gradient)

    def _pass(self, clock: int) -> None:
        """Counts an update that does not come, or the settings of its clock would be kept for ever."""
        with self._lock:
            self._left[clock] = self._left.get(clock, self._each) - 1
            while self._left.get(self._oldest) == 0:
                del self._left[self._oldest]
                self._oldest += 1
            self._forget()


class Homing:
    """One rank's slices. `order` are numbers of parameters, the most urgent first."""

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[nn.Parameter],
        optimizer: Optimizer,
        sync: Sync,
        transport: Processes,
        exchange: Exchange,
        order: Sequence[int],
        *,
        stall: float = 10.0,
        note: Note | None = None,
    ) -> None:
        self.sync, self.clock = sync, 0
        self.waited = dict.fromkeys(names, 0.0)  # seconds, by parameter
        self._names, self._parameters, self._optimizer = names, parameters, optimizer
        self._exchange, self._transport, self._note = exchange, transport, note
        self._due: set[int] = set()  # parameters that are under way
        self._items, self._slices = items_of(names, parameters, sync, transport.size, order)
        self._numbers: dict[int, list[int]] = defaultdict(list)  # by parameter, its items
        for number, (index, _) in enumerate(self._slices):
            self._numbers[index].append(number)
        self.synchroniser: Synchroniser | Summing
        self._own = {n: nn.Parameter(rows) for n, rows in self._open(stall).items()}
        transport.on_failure(self.synchroniser.stop)
        self._home = self._homes_optimizer()
        self._updating: Updating | None = None
        if self._own:
            times = None if sync.synchronous else dict.fromkeys(self._own, transport.size)
            self._updating = Updating(self._home, self._own, times=times, looks=self._looks)
        self.scatter()
        self._take_settings()
        self.synchroniser.start()
        transport.barrier()  # nobody pushes before all listen

    def _open(self, stall: float) -> dict[int, Tensor]:
        """Makes the synchroniser; by item, the rows that are updated on this rank."""
        transport = self._transport
        self._wire = transport.wire()
        self.synchroniser = made = Synchroniser(
            self._items, self._wire, self._apply, staleness=self.sync.staleness, stall=stall,
            timeout=transport.timeout, fail=transport.fail,
            record=None if self._note is None else self._record,
        )  # fmt: skip
        for number in range(len(self._items)):
            made.bind(number, self._rows(number))
        here = [item.number for item in self._items if item.home == transport.rank]
        return {number: made.rows_at_home(number) for number in here}

    # -- a step ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A step's first gradient is handed in: its updates have the settings of now."""
        self.clock += 1
        self._take_settings()

    def changed(self) -> str:
        """The name of a setting that is not what it was when the step began; empty if none."""
        for now, then in zip(self._optimizer.param_groups, self._begun, strict=True):
            for name, value in settings_of(now).items():
                if name not in then or value != then[name]:
                    return name
        return ""

    def give(self, index: int, gradient: Tensor | None) -> None:
        """Hands in this rank's share of the average, which is not written any more; None: it has none."""
        p = self._parameters[index]
        with torch.no_grad():
            if gradient is None:
                part = torch.full(p.shape, -0.0, dtype=p.dtype, device=p.device)
            else:
                # In new memory: gradients of two parameters may be views of the same.
                part = torch.div(gradient, self._transport.size).contiguous()
            for number in self._numbers[index]:
                rows = self._cut(part, number)
                if gradient is not None:
                    rows.view(-1)[:1].add_(0.0)  # never a negative zero
                self.synchroniser.ready(number, rows)
        self._due.add(index)

    def finish(self) -> None:
        """A step ends, all that belongs to it was given."""

    def under_way(self, index: int) -> bool:
        return index in self._due

    def wait(self, index: int) -> None:
        """Until a parameter is up to date."""
        if index not in self._due:
            return
        begin = time.perf_counter()
        for number in self._numbers[index]:
            self.synchroniser.wait(number)
        self._due.discard(index)
        self.waited[self._names[index]] += time.perf_counter() - begin

    def synchronize(self) -> None:
        for index in list(self._due):
            self.wait(index)
        self.synchroniser.synchronize()

    def settle(self) -> None:
        """Nothing is under way anywhere, and all ranks hold what the homes hold. All ranks call it."""
        self.synchronize()
        self._transport.barrier()
        if self.sync.synchronous:
            return
        with torch.no_grad():
            for number, item in enumerate(self._items):
                own = self._own.get(number)
                rows = self._rows(number)
                held = (rows if own is None else own.detach()).to("cpu", copy=True)
                if held.numel():
                    flat = held.contiguous().view(-1).view(torch.uint8)
                    self._transport.broadcast(item.home, flat).wait()
                    rows.copy_(flat.view(item.dtype).view(rows.shape))

    def close(self) -> None:
        self.synchroniser.close()

    @property
    def counters(self) -> dict[str, float]:
        c = self._wire.counters
        return {
            "bytes": sum(self._wire.sent.values()), "messages": c.messages,
            "overtaken": c.overtaken, "busy": c.busy, "longest": c.longest,
        }  # fmt: skip

    # -- the optimizer's state ---------------------------------------------------------------------

    def scatter(self) -> None:
        """What the whole optimizer holds goes to the homes, and is forgotten there."""
        held = self._optimizer.state
        self._home.state.clear()
        for number, rows in self._own.items():
            index, own = self._slices[number]
            p = self._parameters[index]
            if held.get(p):
                self._home.state[rows] = cut(held[p], p.shape, own)
            if not self.sync.synchronous:  # homes update copies: the model may have been loaded too
                with torch.no_grad():
                    rows.copy_(self._rows(number))
        held.clear()

    def collect(self) -> dict[Tensor, State]:
        """The state as the whole optimizer would have it. All ranks call it."""
        self.settle()
        own = {
            n: cut(self._home.state[rows], rows.shape, None)  # a copy: training may go on
            for n, rows in self._own.items()
            if rows in self._home.state
        }
        every = self._everybodys(own)
        whole: dict[Tensor, State] = {}
        for index, p in enumerate(self._parameters):
            numbers = self._numbers[index]
            parts = [every.get(n, {}) for n in numbers]
            joined = join(parts, [self._rows(n).shape for n in numbers], p.device)
            if joined:
                whole[p] = joined
        return whole

    def _everybodys(self, own: dict[int, State]) -> dict[int, State]:
        """By item, from its home."""
        return gather(self._exchange(own))

    # -- pieces ------------------------------------------------------------------------------------

    def _rows(self, number: int) -> Tensor:
        return self._cut(self._parameters[self._slices[number][0]].detach(), number)

    def _cut(self, whole: Tensor, number: int) -> Tensor:
        rows = self._slices[number][1]
        return whole if rows is None else whole[rows]

    def _apply(self, number: int, clock: int, gradient: Tensor) -> None:
        assert self._updating is not None
        self._updating(number, clock, gradient)

    def _looks(self, number: int) -> bool:
        """Whether a sum has to be looked at, to see whether anybody gave a gradient."""
        return True

    def _record(self, number: int, what: str, start: float, end: float) -> None:
        assert self._note is not None
        self._note(self._items[number].name, what, start, end)

    def _homes_optimizer(self) -> Optimizer:
        """Of the same kind and settings, for the slices whose home is here."""
        home = copy.copy(self._optimizer)
        home.state = defaultdict(dict)
        of = {id(p): index for index, p in enumerate(self._parameters)}
        by: dict[int, list[nn.Parameter]] = defaultdict(list)
        for number, rows in self._own.items():
            by[self._slices[number][0]].append(rows)
        home.param_groups = [
            {**settings_of(group), "params": [r for p in group["params"] for r in by[of.get(id(p), -1)]]}
            for group in self._optimizer.param_groups
        ]  # fmt: skip
        return home

    def _take_settings(self) -> None:
        groups = self._optimizer.param_groups
        self._begun = [copy.deepcopy(settings_of(group)) for group in groups]
        for own, group in zip(self._home.param_groups, groups, strict=True):
            own.update(settings_of(group))
        if self._updating is not None:
            self._updating.snapshot(max(1, self.clock))


def items_of(
    names: Sequence[str], parameters: Sequence[Tensor], sync: Sync, size: int, order: Sequence[int]
) -> tuple[list[Item], list[Part]]:
    """Items, and for each its parameter and rows."""
    urgency = {index: place for place, index in enumerate(order)}
    slices: list[Part] = []
    sizes = []
    for index, p in enumerate(parameters):
        for first, last in sync.rows(p.shape, size):
            slices.append((index, slice(first, last) if p.ndim else None))
            sizes.append((last - first) * p[0].numel() if p.ndim else 1)
    everyone = tuple(range(size))
    homes = sync.assign(sizes, [everyone] * len(sizes))
    items = [
        Item(
            number, names[index] + (f"[{rows.start}:{rows.stop}]" if rows else ""), everyone,
            homes[number], sizes[number], parameters[index].dtype, urgency[index],
        )
        for number, (index, rows) in enumerate(slices)
    ]  # fmt: skip
    return items, slices


def absent(gradient: Tensor) -> bool:
    """Whether a sum is of negative zeros."""
    first = gradient.reshape(-1)[:1]
    return bool(((first == 0) & torch.signbit(first)).all())


def settings_of(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}
