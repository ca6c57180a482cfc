"""The executor: carries out the actions of one rank (actions.py), step by step.

Each segment has its own autograd graph, so gradients pass between segments only through slots and messages.
Three rules keep the numbers right:

- no transport writes again into a received message that is in use: autograd would not see the change;
- a gradient from autograd may share memory with other tensors: it is copied before it is changed;
- a tensor that autograd may have saved for a backward is never changed in place.

A run is one call of `run` or `run_steps`: one step or, in asynchronous schedules, several overlapping
steps. In a greedy schedule (greedy.py), each of these steps has a thread, and any step whose message has
arrived may go on.
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
from raddle.program.communicators import communicators
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
    RecordMetric,
    Send,
    StartAllReduce,
    StartReduceScatter,
    StartReplicaSum,
    StartSliceAllReduce,
    SubmitGradients,
    UpdateBuffers,
    UpdateParameters,
    key_of,
)
from raddle.runtime.build_actions import build_actions
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.execution import buffer_updates
from raddle.runtime.execution.compiled_functions import CompiledFunctions
from raddle.runtime.execution.input_feeder import InputFeeder, ReadInput
from raddle.runtime.execution.losses import Losses
from raddle.runtime.execution.message_exchange import Messages
from raddle.runtime.execution.overlapping_parameter_updater import OverlappingParameterUpdater
from raddle.runtime.execution.parameter_updater import ParameterUpdater
from raddle.runtime.execution.segments import Segments
from raddle.runtime.execution.sharded_parameter_updater import ShardedParameterUpdater
from raddle.runtime.execution.sliced_parameter_updater import SlicedParameterUpdater
from raddle.runtime.execution.store import Store
from raddle.runtime.execution.tf32 import tf32_products
from raddle.runtime.greedy import run_greedily
from raddle.runtime.loss_scaler import LossScaler
from raddle.runtime.parameter_sync import ParameterSync
from raddle.transport.base import Transport

# A step without an update (gradient accumulation) skips these actions.
UPDATE_ACTIONS = (
    StartAllReduce, StartReduceScatter, StartReplicaSum, SubmitGradients, StartSliceAllReduce,
    UpdateParameters,
)  # fmt: skip


class Executor:
    """Carries out the actions of one rank: each kind of action goes to one part (execution/).

    place: the torch device that this rank computes on; seed: of random numbers such as dropout masks;
    functions: the functions of calls, if they are to be compiled; scaler: scales the loss, with fp16.
    """

    def __init__(
        self,
        program: Program,
        transport: Transport,
        *,
        place: torch.device | str = "cpu",
        seed: int = 0,
        functions: CompiledFunctions | None = None,
        scaler: LossScaler | None = None,
    ) -> None:
        self.program, self.transport = program, transport
        functions = functions or CompiledFunctions()
        self.rank_actions = rank_actions = build_actions(
            program,
            transport.rank,
            torch.device(place),
            share=None if functions.mode is None else functions.share,
        )
        self.store = Store(rank_actions.shapes, torch.device(place), rank_actions.gathered)
        self.losses = Losses(program, transport, self.store, scaler)
        self.parameter_updater = _make_updater(program, rank_actions, transport, self.store)
        precision = program.plan.parsed_precision
        self.segments = Segments(
            self.store,
            self.parameter_updater,
            functions,
            seed_of=lambda key: self.input_feeder.seed_of(key),
            precision=precision,
            single_microbatch=program.plan.microbatches == 1,
        )
        steps = rank_actions.by_step() if is_greedy(program.plan) else {0: rank_actions.actions}
        receives = {
            step: [a for a in step_actions if isinstance(a, Receive)]
            for step, step_actions in steps.items()
        }
        self.messages = Messages(receives, transport, self.store)
        feeds = (a for a in rank_actions.actions if isinstance(a, Feed))
        self.input_feeder = InputFeeder(feeds, self.store, seed, precision)
        self.optimizer_step: Callable[[], None] = lambda: None  # set by the trainer
        self.parameter_updater.optimizer_step = lambda: self.optimizer_step()
        # Called after each action with its start and end time (time.perf_counter), if set.
        self.record: Callable[[Action, float, float], None] | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            Feed: self.input_feeder.feed,
            Forward: self.segments.forward,
            Backward: self.segments.backward,
            Send: self.messages.send,
            Receive: self.messages.receive,
            AwaitMessage: self.messages.await_message,
            UpdateBuffers: partial(buffer_updates.update_buffers, self.store),
            RecordLoss: self.losses.record,
            RecordMetric: self.losses.metrics.record,
            **self.parameter_updater.handlers,
        }
        # Makes the communicators that earlier programs of this rank have not made.
        needed = communicators(program)
        transport.prepare(
            [c.devices for c in needed if not c.direction],
            [c.direction for c in needed if c.direction],
        )

    # -- parameters and buffers ----------------------------------------------------------------------

    @property
    def slots(self) -> list[Any]:
        return self.store.slots

    @property
    def place(self) -> torch.device:
        return self.store.place

    @property
    def parameter_sync(self) -> ParameterSync | None:
        """The synchronisation of slices; None if parameters are not sliced, or not loaded yet."""
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
        """Fills the slots of parameters, buffers and constants.

        tensor_of: returns the tensor of a slot; parameter_sync: another executor's, to be shared.
        """
        originals: dict[int, Tensor] = {}  # parameters that are in another dtype than the module's
        for source in self.rank_actions.sources:
            if source.role in ("input", "seed"):
                continue
            if source.role == "gathered":  # a ZeRO-3 parameter: it gets memory when it is used
                self.store.gathered.create(source.slot, self.place)
                continue
            if source.role == "constant":
                tensor = self.program.graph.constants[source.name].to(self.place)
            else:
                tensor = tensor_of(source).to(self.place)
            if source.role == "parameter":
                dtype = self.rank_actions.parameter_dtypes.get(source.slot, tensor.dtype)
                if tensor.dtype != dtype:
                    originals[source.slot] = tensor
                tensor = torch.nn.Parameter(tensor.detach().to(dtype))
            elif source.role == "frozen":
                tensor = tensor.to(self.program.graph.values[source.name].dtype)
            self.slots[source.slot] = tensor
        if (
            isinstance(self.parameter_updater, SlicedParameterUpdater)
            and parameter_sync is not None
        ):
            self.parameter_updater.parameter_sync = parameter_sync
        self.parameter_updater.load(originals)

    def parameters(self) -> list[tuple[SlotSource, torch.nn.Parameter]]:
        """Returns all parameter regions of this rank, each with the source that names its box.

        Where a parameter has master weights (master_weights.py), it returns these.
        """
        return [
            (s, self.parameter_updater.masters.of(s.slot))
            for s in self.rank_actions.sources_with_role("parameter")
        ]

    def updated_parameters(self) -> list[tuple[SlotSource, torch.nn.Parameter]]:
        """Returns the parameters, or slices or shards of them, that the optimizer of this rank updates."""
        if self.parameter_sync is not None:
            return self.parameter_sync.updated
        by_slot = {s.slot: (s, p) for s, p in self.parameters()}
        for view in self.rank_actions.shard_views:
            by_slot[view.shard.slot] = view.shard, self.slots[view.shard.slot]
        return [by_slot[slot] for slot in self.rank_actions.updated_slots]

    def synchronize(self) -> None:
        """Waits until all parameters have the updates of the last step and no message is in transit."""
        self.parameter_updater.synchronize()
        if self.parameter_sync is not None:
            self.parameter_sync.synchronize()

    def close(self) -> None:
        """Ends the threads of the parameter synchronisation; transfers that are not complete are lost."""
        if self.parameter_sync is not None:
            self.parameter_sync.close()

    # -- a step ---------------------------------------------------------------------------------------

    def run(
        self, read_input: ReadInput, step: int, *, update: bool = True, weight: float = 1.0
    ) -> Tensor:
        """Runs one step with this number; returns the loss, the same on every rank.

        read_input: returns the tensor of an input slot; update: if False, gradients are only accumulated;
        weight: factor of the loss.
        """
        return self.run_steps(read_input, step, update=update, weight=weight)[0]

    def run_steps(
        self, read_input: ReadInput, step: int, *, update: bool = True, weight: float = 1.0
    ) -> Tensor:
        """Runs all overlapping steps of the program, or one step; returns a tensor with the loss of each.

        step: the number of the first one; the other arguments are as for `run`.
        """
        self.parameter_updater.begin(updating=update)
        self.messages.begin(updating=update)
        self.losses.begin(weight)
        self.input_feeder.begin(read_input, step)
        handlers = (
            self._handlers if update else {**self._handlers, **dict.fromkeys(UPDATE_ACTIONS, _skip)}
        )
        tf32 = self.program.plan.parsed_precision.tf32_products and self.place.type == "cuda"
        with tf32_products(enabled=tf32):
            self._run_all(partial(self._run_in_order, handlers))
        self.messages.finish()
        losses = self.losses.wait()
        self.losses.metrics.wait()
        self.transport.check()  # raises if another rank has failed
        return losses

    def _run_all(self, run_in_order: Callable[[Sequence[Action]], None]) -> None:
        """Carries out all actions, in one order.

        In a greedy schedule (greedy.py), each step in flight has a thread instead.
        """
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
        """Carries out actions in order. While this thread waits for a message, another may compute."""
        if not actions:
            return
        step, record = key_of(actions[0]).step, self.record
        with self.messages.compute_lock:
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
    """Makes the parameter updater for the plan's kind of synchronisation and schedule.

    `sync.wire_dtype`: the dtype in which gradients are sent; "": their own.
    """
    sync = program.plan.parsed_sync
    if rank_actions.slices:
        make_sync = partial(
            ParameterSync,
            rank_actions.slices,
            rank_actions.bundles,
            store.slots,
            transport,
            sync,
            store.place,
            rank_actions.bundle_order,
        )
        return SlicedParameterUpdater(store, transport, make_sync)
    if program.sharded:
        return ShardedParameterUpdater(
            store, transport, rank_actions.updated_slots, rank_actions.blocks, rank_actions.shard_views,
            zero3=program.gathers_before_use,
        )  # fmt: skip
    if is_asynchronous(program.plan):
        return OverlappingParameterUpdater(
            store, transport, rank_actions.updated_slots, rank_actions.buckets, sum_dtype=sync.wire_dtype,
            latest=is_greedy(program.plan),  # a forward uses the newest weights, not a planned version
        )  # fmt: skip
    return ParameterUpdater(
        store,
        transport,
        rank_actions.updated_slots,
        rank_actions.buckets,
        sum_dtype=sync.wire_dtype,
    )


def _skip(action: Action) -> None:
    """Does nothing; the handler of UPDATE_ACTIONS in a step without an update."""
