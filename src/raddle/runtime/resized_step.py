"""Runs a training step on a batch of another size than planned, for example the last batch of an epoch.

The module is captured again for this size, and the plan's tiles are resized in proportion. A second
executor runs the step with the parameters, buffers and optimizer of the training executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from raddle.errors import InputError
from raddle.plans.adapt import resize
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.runtime.batches import BatchCutter
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.executor import Executor
from raddle.runtime.setup import Setup


class ResizedStep:
    """Runs steps on batches with `samples` samples. training: the executor for the planned batch size."""

    def __init__(self, setup: Setup, training: Executor, samples: int) -> None:
        self.setup, plan = setup, setup.plan
        count = min(plan.microbatches, samples)  # of micro-batches; each has at least one sample
        # A schedule of several lines is not a name: it lists the actions of each worker.
        if count != plan.microbatches and plan.schedule and "\n" in plan.schedule:
            raise InputError(
                f"the schedule is written for {plan.microbatches} micro-batches, a batch of {samples} "
                f"gives {count}: drop it."
            )
        size = -(-samples // count)  # samples of the largest micro-batch
        # for_batch: captures the module for micro-batches of this size
        graph, resized_plan = resize(plan, setup.graph, setup.graph.for_batch(size))
        resized_plan = replace(
            resized_plan,
            microbatches=count,
            batch=samples,
            fingerprint=graph.fingerprint(),
            steps=1,
        )
        # order: the slices in the order of their all-reduces, if the plan fixes it
        program = lower(graph, replace(resized_plan, order=()))
        # regions: parameter -> its boxes, each with the devices that hold it
        if program.regions != setup.program.regions:
            raise InputError(
                f"with {samples} samples some devices have none, and their parameters would not be "
                "updated: drop this batch, or plan for its size."
            )
        if resized_plan.order:  # valid here too: equal regions have equal slices
            program = lower(graph, resized_plan)
        check(program)
        self.executor = setup.make_executor(program, seed=training.input_feeder.seed)
        self.shared_state = SharedState(training, self.executor)
        self.batch_cutter = BatchCutter(program, self.executor.rank_actions)

    def run(self, tensors: Mapping[str, Tensor], step: int) -> Tensor:
        """Trains on the tensors of a batch; returns the loss."""
        read_input = self.batch_cutter.reader([tensors], self.setup.rank, self.setup.place)
        self.shared_state.lend_tensors()
        loss = self.executor.run(read_input, step)
        self.shared_state.return_buffers()
        return loss


class SharedState:
    """Lets a second executor of a rank (borrower) use the parameters, buffers and optimizer of the first.

    Call `lend_tensors` before the borrower runs, and `return_buffers` after it.
    """

    def __init__(self, owner: Executor, borrower: Executor) -> None:
        self.owner, self.borrower = owner, borrower
        slots = {(s.name, s.box): s.slot for s in owner.rank_actions.sources if _is_persistent(s)}
        # (source of the borrower, slot of the owner) of each tensor that they share
        self.pairs = [
            (s, slots[s.name, s.box]) for s in borrower.rank_actions.sources if _is_persistent(s)
        ]  # fmt: skip
        # The same for ZeRO-2's shards, which are views of parameters: the optimizer has the owner's.
        views = {(v.shard.name, v.shard.box): v.shard.slot for v in owner.rank_actions.shard_views}
        self.pairs += [
            (v.shard, views[v.shard.name, v.shard.box]) for v in borrower.rank_actions.shard_views
        ]
        borrower.optimizer_step = lambda: owner.optimizer_step()
        # Both executors have the parameters in the same slots, so they can share the synchronisation.
        borrower.load(
            lambda s: owner.slots[slots[s.name, s.box]], parameter_sync=owner.parameter_sync
        )

    def lend_tensors(self) -> None:
        """Gives the borrower the owner's tensors: the same Parameter objects that the optimizer has."""
        self.owner.parameter_updater.synchronize()  # until all gathered parameters have arrived
        for source, slot in self.pairs:
            self.borrower.slots[source.slot] = self.owner.slots[slot]
            masters = self.owner.parameter_updater.masters.by_slot
            if slot in masters:
                self.borrower.parameter_updater.masters.by_slot[source.slot] = masters[slot]

    def return_buffers(self) -> None:
        """Gives the owner the buffers that the borrower has updated; waits for parameters in transit."""
        self.borrower.parameter_updater.synchronize()
        for source, slot in self.pairs:
            if source.role == "buffer":
                self.owner.slots[slot] = self.borrower.slots[source.slot]


def _is_persistent(source: SlotSource) -> bool:
    return source.role in ("parameter", "buffer", "frozen")
