"""The constant data that all parts of a trainer share: model, program, transport, torch device.

A trainer makes one Setup and passes it to its parts, such as the optimizer step and the evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from raddle.graph.graph import Graph
from raddle.graph.supervised import Loss
from raddle.plans.plan import Plan
from raddle.program.program import Program
from raddle.runtime.execution.compiled_functions import CompiledFunctions
from raddle.runtime.executor import Executor
from raddle.runtime.loss_scaler import LossScaler
from raddle.transport.base import Transport
from raddle.transport.exchange import exchange_objects


@dataclass(frozen=True)
class Setup:
    """The model that one rank trains, its torch device, and its connection to the other ranks."""

    model: nn.Module
    program: Program
    transport: Transport
    place: torch.device  # that this rank computes on
    loss: Loss | None = None  # loss(model, batch), for evaluations
    # The functions of all executors of this rank, compiled or not
    functions: CompiledFunctions = field(default_factory=CompiledFunctions)
    scaler: LossScaler | None = None  # of fp16

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
        """Returns an executor of a program on this rank: the setup's program, or one derived from it."""
        return Executor(
            program, self.transport, place=self.place, seed=seed, functions=self.functions,
            scaler=self.scaler,
        )  # fmt: skip

    def exchange(self, local: Any) -> list[Any]:
        """Gathers a Python object from every rank; returns the objects of all ranks, by rank."""
        return exchange_objects(self.transport, self.place, local)
