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
from raddle.plans.pipelining import is_asynchronous, is_greedy, steps_in_flight
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
from raddle.runtime.execution.sliced_parameter_updater import SlicedParameterUpdater
from raddle.runtime.execution.store import Store
from raddle.runtime.greedy import run_greedily
from raddle.runtime.parameter_sync import ParameterSync
from raddle.transport.base import Transport

UPDATE_ACTIONS = (
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
        self.rank_actions = rank_actions = build_actions(
            program, transport.rank, torch.device(place)
        )
        self.store = Store(rank_actions.shapes, torch.device(place), rank_actions.gathered)
        self.losses = Losses(program, transport, self.store)
        self.parameter_updater = _make_updater(program, rank_actions, transport, self.store)
        self.segments = Segments(
            self.store,
            self.parameter_updater,
            autocast=autocast,
            single_microbatch=program.plan.microbatches == 1,
        )
        steps = rank_actions.by_step() if is_greedy(program.plan) else {0: rank_actions.actions}
        receives = {
            step: [a for a in step_actions if isinstance(a, Receive)]
            for step, step_actions in steps.items()
        }
        self.messages = Messages(receives, transport, self.store)
        feeds = (a for a in rank_actions.actions if isinstance(a, Feed))
        self.input_feeder = InputFeeder(feeds, self.store, seed)
        self.optimizer_step: Callable[[], None] = lambda: None  # the optimizer's step
        self.parameter_updater.optimizer_step = lambda: self.optimizer_step()
        self.record: Callable[[Action, float, float], None] | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            Feed: self.input_feeder.feed,
            Forward: self.segments.forward,
            Backward: self.segments.backward,
            Send: self.messages.send,
            Receive: self.messages.receive,
            AwaitMessage: self.messages.await_message,
            StartAllReduce: self.parameter_updater.start_all_reduce,
            SubmitGradients: self.parameter_updater.submit_gradients,
            StartSliceAllReduce: self.parameter_updater.start_slice_all_reduce,
            UpdateBuffers: partial(buffers.update_buffers, self.store),
            RecordLoss: self.losses.record,
            UpdateParameters: self.parameter_updater.update_parameters,
        }
        transport.prepare(rank_actions.groups, rank_actions.links)

    # -- what lasts ----------------------------------------------------------------------------------

    @property
    def slots(self) -> list[Any]:
        return self.store.slots

    @property
    def place(self) -> torch.device:
        return self.store.place

    @property
    def parameter_sync(self) -> ParameterSync | None:
        """What keeps slices of parameters equal, once they are loaded."""
        return (
            self.parameter_updater.parameter_sync
            if isinstance(self.parameter_updater, SlicedParameterUpdater)
            else None
        )

    def load(
        self,
        tensor_of: Callable[[SlotSource], Tensor],
        *,
        parameter_sync: ParameterSync | None = None,
    ) -> None:
        """Fills the slots of parameters, buffers and constants; `agreeing` is another executor's."""
        for source in self.rank_actions.sources:
            if source.role in ("input", "seed"):
                continue
            if source.role == "gathered":
                self.store.gathered.create(source.slot, self.place)
                continue
            if source.role == "constant":
                tensor = self.program.graph.constants[source.name].to(self.place)
            else:
                tensor = tensor_of(source).to(self.place)
            if source.role == "parameter":
                tensor = torch.nn.Parameter(tensor.detach())
            self.slots[source.slot] = tensor
        if (
            isinstance(self.parameter_updater, SlicedParameterUpdater)
            and parameter_sync is not None
        ):
            self.parameter_updater.parameter_sync = parameter_sync
        self.parameter_updater.load()

    def parameters(self) -> list[tuple[SlotSource, torch.nn.Parameter]]:
        return [(s, self.slots[s.slot]) for s in self.rank_actions.sources_with_role("parameter")]

    def updated_parameters(self) -> list[tuple[SlotSource, torch.nn.Parameter]]:
        """What an optimizer on this rank updates."""
        if self.parameter_sync is not None:
            return self.parameter_sync.updated
        by_slot = {s.slot: (s, p) for s, p in self.parameters()}
        return [by_slot[slot] for slot in self.rank_actions.updated_slots]

    def synchronize(self) -> None:
        """All parameters are as the last step leaves them, and nothing is under way."""
        if self.parameter_sync is not None:
            self.parameter_sync.synchronize()

    def close(self) -> None:
        """Ends the threads that carry slices; what is under way is lost."""
        if self.parameter_sync is not None:
            self.parameter_sync.close()

    # -- a step ---------------------------------------------------------------------------------------

    def run(
        self, read_input: ReadInput, step: int, *, update: bool = True, weight: float = 1.0
    ) -> Tensor:
        """One step; the loss, on every rank. Without `update`, gradients stay and add up."""
        return self.run_steps(read_input, step, update=update, weight=weight)[0]

    def run_steps(
        self, read_input: ReadInput, step: int, *, update: bool = True, weight: float = 1.0
    ) -> Tensor:
        """The losses of all steps that the program overlaps, on every rank; else of one step."""
        self.parameter_updater.begin(updating=update)
        self.messages.begin(updating=update)
        self.losses.begin(weight)
        self.input_feeder.begin(read_input, step)
        handlers = (
            self._handlers if update else {**self._handlers, **dict.fromkeys(UPDATE_ACTIONS, _skip)}
        )
        self._run_all(partial(self._run_in_order, handlers))
        self.messages.finish()
        losses = self.losses.wait()
        self.transport.check()
        return losses

    def _run_all(self, run_in_order: Callable[[Sequence[Action]], None]) -> None:
        if not is_greedy(self.program.plan):
            run_in_order(self.rank_actions.actions)
            return
        if not self.transport.early_receives:
            raise InputError(
                f"the schedule '{self.program.plan.schedule}' lets messages overtake each other, which "
                "NCCL does not: use --backend gloo, or a schedule in a fixed order."
            )
        steps = [actions for _, actions in sorted(self.rank_actions.by_step().items())]
        run_greedily(steps, steps_in_flight(self.program.plan), run_in_order, self.transport.fail)

    def _run_in_order(
        self, handlers: Mapping[type, Callable[[Any], None]], actions: Sequence[Action]
    ) -> None:
        """Carries out actions in their order; lets others have their turn while it waits."""
        if not actions:
            return
        step, record = key_of(actions[0]).step, self.record
        with self.messages.compute_lock, self.segments.autocast_context():
            self.messages.post_early(step)
            if record is None:
                for action in actions:
                    handlers[type(action)](action)
            else:
                for action in actions:
                    start = time.perf_counter()
                    handlers[type(action)](action)
                    record(action, start, time.perf_counter())
            self.parameter_updater.end_step(step)


def _make_updater(
    program: Program, rank_actions: RankActions, transport: Transport, store: Store
) -> ParameterUpdater:
    """How the plan's parameters are updated."""
    sync = program.plan.parsed_sync
    if rank_actions.slices:
        make_sync = partial(
            ParameterSync,
            rank_actions.slices,
            store.slots,
            transport,
            sync,
            store.place,
            rank_actions.slice_order,
        )
        return SlicedParameterUpdater(store, transport, make_sync)
    if is_asynchronous(program.plan):
        return OverlappingParameterUpdater(
            store, transport, rank_actions.updated_slots, rank_actions.buckets, sum_dtype=sync.wire_dtype,
            latest=is_greedy(program.plan),
        )  # fmt: skip
    return ParameterUpdater(
        store,
        transport,
        rank_actions.updated_slots,
        rank_actions.buckets,
        sum_dtype=sync.wire_dtype,
    )


def _skip(action: Action) -> None:
    """A step without an update: gradients stay where they are."""
