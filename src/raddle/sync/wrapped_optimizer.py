"""raddle.sync.Optimizer: wraps an optimizer of torch.optim and averages its gradients over all ranks.

There are two mechanisms:

- bucketed (`allreduce`, and everything that needs a barrier): gradients are all-reduced into p.grad by the
  end of the backward, and every rank updates all parameters.
- sliced (`sharded`, `ps`, `p3`): a gradient leaves p.grad in slices as soon as it is complete. The server
  of a slice, which is one of the ranks, updates it and sends it back. `p3` sends the most urgent slice
  first. With `p3:collective` all ranks sum and update all slices.

A barrier means that all gradients of a step are summed before any parameter is updated.

The mechanism is chosen at the first step at the latest. Until then gradients stay in p.grad; if something
reads them there before the step (a GradScaler, a norm), the bucketed mechanism is chosen.

    backward     hooks submit each gradient          bucketed: waits for all sums at its end
    step         sliced: submits the gradients that are missing; waits for all slices (p3: does not wait)
    forward      p3: each module waits for its own parameters
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from raddle.sync.channels import Channels
from raddle.sync.consistency import check_same, describe
from raddle.sync.first_step import make_first_handler
from raddle.sync.gradient_buckets import BUCKET_BYTES
from raddle.sync.gradient_hooks import GradientHooks
from raddle.sync.item import UpdateEvent
from raddle.sync.session import session
from raddle.sync.sync_settings import find_barrier_reason, read_settings
from raddle.sync.trained_parameters import TrainedParameters


class Optimizer(torch.optim.Optimizer):
    """Wraps `optimizer`, which trains parameters of `model`. All ranks make it with the same arguments.

    `sync`: the sync kind, as in plans (raddle/plans/sync): allreduce, allreduce:bf16, sharded, ps, p3...
    `barrier=True`: gradients are summed into p.grad by the end of the backward, whatever `sync` says.
    `backward_passes`: calls of backward for each step. `bucket`: bytes of gradients in one all-reduce.
    `debug=True` (or RADDLE_SYNC_DEBUG=1): in every step all ranks compare what they are about to sum.
    `stall`: seconds of waiting after which a warning names the ranks that are missing.

    >>> from raddle import sync
    >>> sync.init()
    >>> model = nn.Linear(4, 2)
    >>> optimizer = sync.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, sync="allreduce")
    >>> model(torch.ones(8, 4)).sum().backward(); optimizer.step(); optimizer.zero_grad()
    >>> sync.close()
    """

    _wrapped = False  # True from the end of super().__init__, which adds the parameter groups

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        sync: str = "allreduce",
        *,
        barrier: bool = False,
        backward_passes: int = 1,
        bucket: int = BUCKET_BYTES,
        debug: bool | None = None,
        stall: float = 10.0,
    ) -> None:
        self._session = session()
        settings = read_settings(
            sync, self._session.size,
            backward_passes=backward_passes, bucket=bucket, debug=debug, stall=stall,
        )  # fmt: skip
        self._trained = trained = TrainedParameters(optimizer, model)
        barrier_reason = find_barrier_reason(trained, settings, requested=barrier)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._wrapped = True
        # The same objects as the wrapped optimizer's: a scheduler that changes one changes both.
        self.param_groups, self.state = optimizer.param_groups, optimizer.state
        self._sync_text, self._steps = sync, 0
        self._channels = channels = Channels(self._session, trained.device, stall)
        description = describe(
            trained.names, trained.parameters, optimizer, settings.to_compare(barrier_reason)
        )
        try:
            check_same(channels.exchange(description))
        except ValueError:
            channels.close()
            raise
        handler = make_first_handler(trained, model, channels, settings, barrier_reason)
        self._hooks = GradientHooks(handler, model, channels)
        self._session.optimizers.append(self)

    # -- methods of every optimizer ----------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates with the gradients averaged over all ranks; returns the closure's loss, if there is one.

        All ranks take the same number of steps.
        """
        with self._channels.reporting_failures():
            self._steps += 1
            inner, loss = self._trained.optimizer, None
            if isinstance(inner, torch.optim.LBFGS) and closure is not None:
                return inner.step(partial(_average_loss, closure, self._channels))  # type: ignore[no-untyped-call]
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._trained.check_frozen()
            self._hooks.choose_mechanism().step()
            return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears p.grad. Gradients that were submitted already have left p.grad and are not affected."""
        self._trained.optimizer.zero_grad(set_to_none)
        self._hooks.handler.on_zero_grad()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._wrapped:
            raise RuntimeError(
                "parameters cannot be added to a wrapped optimizer: add them before sync.Optimizer(...)"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Returns the plain optimizer's state, gathered from the servers. All ranks call it."""
        with self._channels.reporting_failures():
            return self._hooks.handler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a `state_dict` of this class or of the plain optimizer. All ranks call it."""
        with self._channels.reporting_failures():
            self._hooks.handler.load_state_dict(state_dict)
            inner = self._trained.optimizer
            self.param_groups, self.state = inner.param_groups, inner.state

    # -- methods of this class alone ---------------------------------------------------------------

    def synchronize(self) -> None:
        """Waits until this rank's parameters are up to date and its messages are sent.

        After it the script may read or write parameters.
        """
        self._hooks.synchronize()

    def synchronize_gradients(self) -> None:
        """Puts the gradients averaged over all ranks into p.grad.

        All ranks call it, between backward and step.
        """
        self._hooks.average("somebody looks at gradients between backward and step")

    def clip_grad_norm(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> Tensor:
        """Averages the gradients over all ranks, then clips them with torch.nn.utils.clip_grad_norm_.

        Returns their norm before the clipping. All ranks call it, between backward and step.
        """
        self._hooks.average("clipping needs the norm of all gradients")
        return nn.utils.clip_grad_norm_(
            self._trained.parameters, max_norm, norm_type, error_if_nonfinite=error_if_nonfinite
        )

    @property
    def barrier(self) -> str:
        """The reason why all gradients are summed before any update; empty if they need not be."""
        return self._hooks.handler.barrier_reason

    @property
    def log(self) -> list[UpdateEvent]:
        """The updates that this rank has made as a server, in their order."""
        return self._hooks.handler.log

    def report(self) -> dict[str, Any]:
        """Returns this rank's counters, and why there is a barrier.

        bytes, messages: sent or all-reduced so far. overtaken: how many messages left before an older one.
        waited: seconds so far; sliced: {parameter: seconds}, the longest; bucketed: {"sums": seconds}.
        unguarded: parameters for which `step` waits, because no module does. With servers there are also
        busy: seconds spent in sending, and longest: the most messages that were in a queue.
        """
        return {
            "sync": self._sync_text, "barrier": self.barrier, "steps": self._steps,
            "bytes": 0, "messages": 0, "overtaken": 0, "waited": {}, "unguarded": [],
            **self._hooks.handler.report(),
        }  # fmt: skip

    def close(self, failed: str = "") -> None:
        """Waits until all messages have arrived on all ranks, then ends. All ranks call it.

        failed: why this rank ends early. Then it reports the reason to the others and does not wait.
        """
        if self._channels.closed:
            return
        self._channels.closed = True
        try:
            if not failed:
                self._hooks.handler.synchronize_ranks()
                self._channels.cpu_transport.barrier()  # servers stay until all ranks are done
        except Exception as error:
            failed = str(error)
            raise
        finally:
            if failed:
                self._channels.fail(failed)
            self._hooks.close()
            self._channels.close()
            self._session.optimizers.remove(self)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """A GradScaler reads this property before it reads gradients, so they are averaged here."""
        self._hooks.average("a GradScaler looks at gradients between backward and step")
        return False


def _average_loss(closure: Callable[[], Any], channels: Channels) -> Any:
    """Returns the closure's loss averaged over all ranks.

    LBFGS makes decisions from losses, so all ranks must see the same one.
    """
    with torch.enable_grad():
        loss = closure()
    losses = channels.exchange(float(torch.as_tensor(loss).detach()))
    return sum(losses) / len(losses)
