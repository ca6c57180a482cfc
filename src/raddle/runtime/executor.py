"""One rank: carries out its actions step by step.

Forward and backward are explicit. Every segment runs on leaves of its own, so gradients are handed on along
the program's edges and nowhere else. Three rules keep numbers right:

- a buffer that a message arrives in belongs to the executor: transports write without telling autograd;
- what autograd returns may share memory with something else: it is copied before it is changed;
- nothing is ever changed in place that a segment may have kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from raddle.errors import InputError
from raddle.plans.pipelining import is_asynchronous, is_greedy, threads_of
from raddle.program.program import Program
from raddle.runtime.actions import (
    Action,
    AwaitMessage,
    Backward,
    Feed,
    Forward,
    RankActions,
    Receive,
    RecordLoss,
    Send,
    StartAllReduce,
    StartSliceAllReduce,
    SubmitGradients,
    UpdateBuffers,
    UpdateParameters,
    key_of,
)
from raddle.runtime.build_actions import build_actions
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.execution import buffers
from raddle.runtime.execution.input_feeder import InputFeeder, ReadInput
from raddle.runtime.execution.losses import Losses
from raddle.runtime.execution.messages import Messages
from raddle.runtime.execution.overlapping_parameter_updater import OverlappingParameterUpdater
from raddle.runtime.execution.parameter_updater import ParameterUpdater
from raddle.runtime.execution.segments import Segments
from raddle.runtime.execution.sliced_parameter_updater import SlicedParameters
from raddle.runtime.execution.store import Store
from raddle.runtime.greedy import carry_out_greedily
from raddle.runtime.parameter_sync import Agreeing
from raddle.transport.base import Transport

OF_UPDATES = (
    StartAllReduce,
    SubmitGradients,
    StartSliceAllReduce,
    UpdateParameters,
)  # actions that a step without an update leaves out


class Executor:
    """The parts of one rank, and which of them does what."""

    def __init__(
        self,
        program: Program,
        transport: Transport,
        *,
        place: torch.device | str = "cpu",
        seed: int = 0,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.program, self.transport = program, transport
        self.plan = plan = build_actions(program, transport.rank, torch.device(place))
        self.store = Store(plan.shapes, torch.device(place), plan.gathered)
        self.losses = Losses(program, transport, self.store)
        self.trained = _parameters(program, plan, transport, self.store)
        self.segments = Segments(
            self.store, self.trained, autocast=autocast, adds_once=program.plan.microbatches == 1
        )
        steps = plan.by_step() if is_greedy(program.plan) else {0: plan.actions}
        receives = {n: [a for a in own if isinstance(a, Receive)] for n, own in steps.items()}
        self.messages = Messages(receives, transport, self.store)
        feeds = (a for a in plan.actions if isinstance(a, Feed))
        self.feeding = InputFeeder(feeds, self.store, seed)
        self.update: Callable[[], None] = lambda: None  # the optimizer's step
        self.trained.optimizer_step = lambda: self.update()
        self.record: Callable[[Action, float, float], None] | None = None
        self._do: dict[type, Callable[[Any], None]] = {
            Feed: self.feeding.feed,
            Forward: self.segments.forward,
            Backward: self.segments.backward,
            Send: self.messages.send,
            Receive: self.messages.receive,
            AwaitMessage: self.messages.await_message,
            StartAllReduce: self.trained.start_all_reduce,
            SubmitGradients: self.trained.submit_gradients,
            StartSliceAllReduce: self.trained.start_slice_all_reduce,
            UpdateBuffers: partial(buffers.update_buffers, self.store),
            RecordLoss: self.losses.record,
            UpdateParameters: self.trained.update_parameters,
        }
        transport.prepare(plan.groups, plan.links)

    # -- what lasts ----------------------------------------------------------------------------------

    @property
    def slots(self) -> list[Any]:
        return self.store.slots

    @property
    def place(self) -> torch.device:
        return self.store.place

    @property
    def agreeing(self) -> Agreeing | None:
        """What keeps slices of parameters equal, once they are loaded."""
        return self.trained.agreeing if isinstance(self.trained, SlicedParameters) else None

    def load(
        self, tensor_of: Callable[[SlotSource], Tensor], *, agreeing: Agreeing | None = None
    ) -> None:
        """Fills the slots of parameters, buffers and constants; `agreeing` is another executor's."""
        for source in self.plan.sources:
            if source.role in ("input", "seed"):
                continue
            if source.role == "whole":
                self.store.wholes.make(source.slot, self.place)
                continue
            if source.role == "constant":
                tensor = self.program.graph.constants[source.name].to(self.place)
            else:
                tensor = tensor_of(source).to(self.place)
            if source.role == "parameter":
                tensor = torch.nn.Parameter(tensor.detach())
            self.slots[source.slot] = tensor
        if isinstance(self.trained, SlicedParameters) and agreeing is not None:
            self.trained.agreeing = agreeing
        self.trained.load()

    def parameters(self) -> list[tuple[SlotSource, torch.nn.Parameter]]:
        return [(s, self.slots[s.slot]) for s in self.plan.sources_with_role("parameter")]

    def updated(self) -> list[tuple[SlotSource, torch.nn.Parameter]]:
        """What an optimizer on this rank updates."""
        if self.agreeing is not None:
            return self.agreeing.updated
        own = {s.slot: (s, p) for s, p in self.parameters()}
        return [own[slot] for slot in self.plan.updated_slots]

    def synchronize(self) -> None:
        """All parameters are as the last step leaves them, and nothing is under way."""
        if self.agreeing is not None:
            self.agreeing.synchronize()

    def close(self) -> None:
        """Ends the threads that carry slices; what is under way is lost."""
        if self.agreeing is not None:
            self.agreeing.close()

    # -- a step ---------------------------------------------------------------------------------------

    def run(
        self, feed: ReadInput, step: int, *, update: bool = True, weight: float = 1.0
    ) -> Tensor:
        """One step; the loss, on every rank. Without `update`, gradients stay and add up."""
        return self.run_steps(feed, step, update=update, weight=weight)[0]

    def run_steps(
        self, feed: ReadInput, step: int, *, update: bool = True, weight: float = 1.0
    ) -> Tensor:
        """The losses of all steps that the program overlaps, on every rank; else of one step."""
        self.trained.begin(updating=update)
        self.messages.begin(updating=update)
        self.losses.begin(weight)
        self.feeding.begin(feed, step)
        do = self._do if update else {**self._do, **dict.fromkeys(OF_UPDATES, _nothing)}
        self._carry_out(partial(self._carry, do))
        self.messages.finish()
        losses = self.losses.wait()
        self.transport.check()
        return losses

    def _carry_out(self, carry: Callable[[Sequence[Action]], None]) -> None:
        if not is_greedy(self.program.plan):
            carry(self.plan.actions)
            return
        if not self.transport.early:
            raise InputError(
                f"the schedule '{self.program.plan.schedule}' lets messages overtake each other, which "
                "NCCL does not: use --backend gloo, or a schedule in a fixed order."
            )
        steps = [actions for _, actions in sorted(self.plan.by_step().items())]
        carry_out_greedily(steps, threads_of(self.program.plan), carry, self.transport.fail)

    def _carry(self, do: Mapping[type, Callable[[Any], None]], actions: Sequence[Action]) -> None:
        """Carries out actions in their order; lets others have their turn while it waits."""
        if not actions:
            return
        step, record = key_of(actions[0]).step, self.record
        with self.messages.compute_lock, self.segments.precision():
            self.messages.post_early(step)
            if record is None:
                for action in actions:
                    do[type(action)](action)
            else:
                for action in actions:
                    start = time.perf_counter()
                    do[type(action)](action)
                    record(action, start, time.perf_counter())
            self.trained.end_step(step)


def _parameters(
    program: Program, plan: RankActions, transport: Transport, store: Store
) -> ParameterUpdater:
    """How the plan's parameters are updated."""
    sync = program.plan.syncing
    if plan.slices:
        agree = partial(
            Agreeing, plan.slices, store.slots, transport, sync, store.place, plan.slice_order
        )
        return SlicedParameters(store, transport, agree)
    if is_asynchronous(program.plan):
        return OverlappingParameterUpdater(
            store, transport, plan.updated_slots, plan.buckets, narrow=sync.compressed,
            latest=is_greedy(program.plan),
        )  # fmt: skip
    return ParameterUpdater(
        store, transport, plan.updated_slots, plan.buckets, sum_dtype=sync.compressed
    )


def _nothing(action: Action) -> None:
    """A step without an update: gradients stay where they are."""
