"""An optimizer of torch.optim whose gradients are averaged over all ranks.

Two ways. Sums: gradients are all-reduced into p.grad by the end of the backward, and every rank updates all
parameters (`allreduce`, and whatever needs a barrier). Homes: a gradient leaves as soon as it is complete,
is updated at its home, and comes back (`sharded`, `ps`, `p3`); with `p3:collective` every rank is a home of
everything. Which of them is used is known at the first
step at the latest: until then gradients stay in p.grad, and whoever looks at them there (a GradScaler, a
norm) gets sums.

    backward     hooks  ->  give each gradient                   ->  sums: at its end, wait for all
    step         homes: hand in what is missing; wait for all, or with p3 for nothing
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
    """Wraps `optimizer`, whose parameters are of `model`. All ranks do it alike.

    `sync` says how, as plans do: allreduce, allreduce:bf16, sharded, ps, ps:sliced,greedy, ps:ssp=2, p3...
    `barrier=True`: gradients are summed into p.grad before anybody looks at them, whatever `sync` says.
    `backward_passes`: calls of backward for each step. `bucket`: bytes that are summed at once.
    `debug=True` (or RADDLE_SYNC_DEBUG=1): all ranks compare what they are about to sum, in every step.
    `stall`: seconds after which a warning says who keeps the others waiting.
    """

    _wrapped = False  # whether all parameters are there

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
        # The dictionaries of the wrapped one: a scheduler that changes ours changes both.
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

    # -- as every optimizer ------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates, by the average over all ranks. All ranks take the same number of steps."""
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
        """What has been handed in is not touched: it is not in p.grad any more."""
        self._trained.optimizer.zero_grad(set_to_none)
        self._hooks.handler.on_zero_grad()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._wrapped:
            raise RuntimeError(
                "parameters cannot be added to a wrapped optimizer: add them before sync.Optimizer(...)"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """As the plain optimizer would have it, gathered from the homes: all ranks call it."""
        with self._channels.reporting_failures():
            return self._hooks.handler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict` of this or of a plain optimizer gave. All ranks call it."""
        with self._channels.reporting_failures():
            self._hooks.handler.load_state_dict(state_dict)
            inner = self._trained.optimizer
            self.param_groups, self.state = inner.param_groups, inner.state

    # -- what others have not ----------------------------------------------------------------------

    def synchronize(self) -> None:
        """Parameters are up to date, and nothing of this rank is under way: they may be read or written."""
        self._hooks.synchronize()

    def synchronize_gradients(self) -> None:
        """Averages over all ranks are in p.grad: call it between backward and step, on all ranks."""
        self._hooks.average("somebody looks at gradients between backward and step")

    def clip_grad_norm(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> Tensor:
        """torch.nn.utils.clip_grad_norm_ of the averages; gives the norm. All ranks call it."""
        self._hooks.average("clipping needs the norm of all gradients")
        return nn.utils.clip_grad_norm_(
            self._trained.parameters, max_norm, norm_type, error_if_nonfinite=error_if_nonfinite
        )

    @property
    def barrier(self) -> str:
        """Why gradients are summed before the update; empty if they need not be."""
        return self._hooks.handler.barrier_reason

    @property
    def log(self) -> list[UpdateEvent]:
        """Updates at this rank's homes, in their order."""
        return self._hooks.handler.log

    def report(self) -> dict[str, Any]:
        """What has been sent and waited for on this rank, and why there is a barrier."""
        return {
            "sync": self._sync_text, "barrier": self.barrier, "steps": self._steps,
            "bytes": 0, "messages": 0, "overtaken": 0, "waited": {}, "unguarded": [],
            **self._hooks.handler.report(),
        }  # fmt: skip

    def close(self, failed: str = "") -> None:
        """Ends when nothing is under way on any rank. All ranks call it, unless one has `failed`."""
        if self._channels.closed:
            return
        self._channels.closed = True
        try:
            if not failed:
                self._hooks.handler.synchronize_ranks()
                self._channels.cpu_transport.barrier()  # homes stay while others need them
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
        """A GradScaler asks this before it looks at all gradients: it shows that there is one."""
        self._hooks.average("a GradScaler looks at gradients between backward and step")
        return False


def _average_loss(closure: Callable[[], Any], channels: Channels) -> Any:
    """LBFGS compares losses: ranks that saw different ones would go different ways."""
    with torch.enable_grad():
        loss = closure()
    losses = channels.exchange(float(torch.as_tensor(loss).detach()))
    return sum(losses) / len(losses)
