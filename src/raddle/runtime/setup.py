"""What a rank trains, and with whom: what the parts of a trainer share, and nobody changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.program.program import Program
from raddle.runtime.executor import Executor
from raddle.transport.base import Transport
from raddle.transport.exchange import exchange_objects


@dataclass(frozen=True)
class Setup:
    """A module and its loss, the program of a plan, and this rank's end of a transport."""

    model: nn.Module
    program: Program
    transport: Transport
    place: torch.device
    loss: Callable[..., Tensor] | None = None
    autocast: torch.dtype | None = None

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @property
    def plan(self) -> Plan:
        return self.program.plan

    @property
    def rank(self) -> int:
        return self.transport.rank

    def make_executor(self, program: Program, *, seed: int = 0) -> Executor:
        """Of a program on this rank: the plan's, or one that follows it."""
        return Executor(
            program, self.transport, place=self.place, seed=seed, autocast=self.autocast
        )

    def exchange(self, mine: Any) -> list[Any]:
        """What every rank gives, on every rank."""
        return exchange_objects(self.transport, self.place, mine)
