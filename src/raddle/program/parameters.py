"""Who holds which part of a parameter, in all variants of a program, and what of it is synchronised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from raddle.graph.box import Box
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.regions import add_boxes
from raddle.program.program import Share
from raddle.program.settling import Settled
from raddle.program.sharing import shares_from
from raddle.program.slicing import check_order, slices_of

Group = tuple[tuple[int, ...], ...]  # the devices that sum, share by share


@dataclass(frozen=True)
class Parameters:
    """The parameters of a graph as some plan holds them."""

    graph: Graph
    plan: Plan
    settled: Sequence[Settled]

    @cached_property
    def graded(self) -> list[str]:
        """Those that have a gradient."""
        values = self.graph.values
        return [n for n in self.settled[0].graders if values[n].role == "parameter"]

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
        """What is synchronised piece by piece; nothing where whole parameters are."""
        if not self.plan.syncing.sliced or not self.settled[0].active:
            return {}
        found = slices_of(self.shares, self.graded, self.plan.syncing)
        check_order(self.plan.order, found)
        return found

    def shared(self, name: str) -> tuple[Share, ...]:
        """The shares that several devices, or a server and another device, have."""
        return tuple(s for s in self.shares[name] if s.travels)

    @cached_property
    def groups(self) -> dict[str, Group]:
        """By parameter, if anybody shares it, who sums it."""
        shared = ((name, self.shared(name)) for name in self.graded)
        return {n: tuple(dict.fromkeys(s.devices for s in own)) for n, own in shared if own}


def holders(shares: Iterable[Share]) -> tuple[int, ...]:
    return tuple(sorted({d for s in shares for d in s.devices}))
