"""Sliced updates without servers: each slice is summed over all ranks, and every rank updates it.

Unused parameters. A rank without a gradient submits negative zeros, as with servers (sliced_optimizer.py):
-0.0 + x is exactly x, and a sum of only -0.0 shows that no rank had a gradient. Only such a rank looks at
the sum, because reading from a GPU makes the host wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from raddle.sync.collective_synchroniser import CollectiveSynchroniser
from raddle.sync.optimizer_state import OptimizerState
from raddle.sync.parameter_slices import ParameterSlices, RecordSpan
from raddle.sync.sliced_optimizer import SlicedOptimizer
from raddle.sync.sliced_updates import Exchange, SlicedUpdates
from raddle.sync.stall_inspector import StallInspector
from raddle.sync.sum_order import order_sums
from raddle.sync.sum_timing import AllReduceCost
from raddle.transport.base import Transport


class CollectiveUpdates(SlicedUpdates):
    """The slices of one rank. An item is one slice, or several small ones that are summed together.

    order: numbers of items in the order of their sums, the same on all ranks. exchange: gathers an
    object from every rank. debug: all ranks compare which slices they are about to sum, before any
    all-reduce. stall_inspector: warns which ranks are missing in an all-reduce.
    """

    def __init__(
        self,
        slices: ParameterSlices,
        optimizer: Optimizer,
        transport: Transport,
        exchange: Exchange,
        *,
        order: Sequence[int],
        stall_inspector: StallInspector,
        debug: bool = False,
        record_span: RecordSpan | None = None,
    ) -> None:
        self._without_gradient: set[int] = set()  # indices of parameters, on this rank
        self._submitted: set[int] = set()  # parameters, in the current step
        rows = {item.number: slices.item_rows(item.number) for item in slices.items}
        sliced_optimizer = SlicedOptimizer(
            slices,
            optimizer,
            rows,
            # By slice, whether this rank must look at the sum: maybe no rank had a gradient.
            may_be_absent=lambda number: slices.locations[number][0] in self._without_gradient,
        )
        self.collective = CollectiveSynchroniser(
            slices.items, order, transport, sliced_optimizer, exchange,
            debug=debug, waiting_for=stall_inspector.waiting_for, record=slices.record_by_item(record_span),
        )  # fmt: skip
        super().__init__(slices, sliced_optimizer, self.collective, transport, exchange)

    def submit(self, index: int, gradient: Tensor | None) -> None:
        self.wait(index)  # the last step's update still reads _without_gradient
        (self._without_gradient.discard if gradient is not None else self._without_gradient.add)(
            index
        )
        super().submit(index, gradient)
        # _pending (sliced_updates.py): the parameters for which `wait` waits; finish_step adds this one.
        self._pending.discard(index)
        self._submitted.add(index)

    def finish_step(self) -> None:
        """Ends a step. `wait` waits for its updates only from now on.

        So a forward before the end of the step (with several backward passes) reads the old values.
        """
        self.collective.finish()
        self._pending |= self._submitted
        self._submitted.clear()

    def _gather_states(self) -> dict[int, OptimizerState]:
        """Returns the state of every slice. This rank has all of them, because it updates all items."""
        return self.sliced_optimizer.states()

    @property
    def counters(self) -> dict[str, float]:
        """All-reduces issued, and how many went before one whose gradient was ready earlier."""
        issuer = self.collective.issuer
        return {"bytes": issuer.nbytes, "messages": issuer.count, "overtaken": issuer.overtaken}


def order_slices(
    slices: ParameterSlices, ready_seconds: Sequence[float], cost: AllReduceCost
) -> list[int]:
    """Returns the item numbers in the order of their sums.

    ready_seconds: by parameter, when its gradient is complete, in seconds after the first gradient.
    cost: the measured time of an all-reduce, which grows with its elements.
    """
    return order_sums(
        # An item is complete when the last one of its gradients is.
        [
            max(ready_seconds[slices.locations[slice_number][0]] for slice_number in members)
            for members in slices.slices_of_item
        ],
        [cost.seconds(item.elements) for item in slices.items],
        [item.priority for item in slices.items],
    )
