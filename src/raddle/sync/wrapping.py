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

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from raddle.errors import InputError
from raddle.plans.sync import Sync, check_width, read_sync
from raddle.sync.allreduce import BUCKET, Buckets, check_dense
from raddle.sync.applying import needs_barrier
from raddle.sync.everywhere import Everywhere, turns_of
from raddle.sync.guarding import Guards
from raddle.sync.homing import Homing, items_of
from raddle.sync.item import Event
from raddle.sync.lateness import Lateness
from raddle.sync.matching import check_same, describe
from raddle.sync.measuring import Moments, rate_of
from raddle.sync.session import session
from raddle.sync.stalls import logger
from raddle.transport.exchange import exchange_over

CPU = torch.device("cpu")
WORST = 5  # parameters that a report names


class Optimizer(torch.optim.Optimizer):
    """Wraps `optimizer`, whose parameters are of `model`. All ranks do it alike.

    `sync` says how, as plans do: allreduce, allreduce:bf16, sharded, ps, ps:sliced,greedy, ps:ssp=2, p3...
    `barrier=True`: gradients are summed into p.grad before anybody looks at them, whatever `sync` says.
    `backward_passes`: calls of backward for each step. `bucket`: bytes that are summed at once.
    `debug=True` (or RADDLE_SYNC_DEBUG=1): all ranks compare what they are about to sum, in every step.
    `stall`: seconds after which a warning says who keeps the others waiting.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        sync: str = "allreduce",
        *,
        barrier: bool = False,
        backward_passes: int = 1,
        bucket: int = BUCKET,
        debug: bool | None = None,
        stall: float = 10.0,
    ) -> None:
        self._session, self._closed, self._wrapped = session(), False, False
        self._inner, self._model, self._text = optimizer, model, sync
        self._sync = _checked(read_sync(sync), self._session.size)
        if backward_passes < 1:
            raise ValueError(f"backward_passes is {backward_passes}: a step needs 1 or more")
        self._each, self._bucket, self._stall = backward_passes, bucket, stall
        self._debug = (
            os.environ.get("RADDLE_SYNC_DEBUG", "") not in ("", "0") if debug is None else debug
        )
        self._parameters, self._names = _trained(optimizer, model)
        self._numbers = {id(p): index for index, p in enumerate(self._parameters)}
        self._device = _only_device(self._names, self._parameters)
        named = zip(self._names, self._parameters, strict=True)
        check_width(sync, {name: p.dtype for name, p in named})
        self.barrier = self._needs_barrier(barrier)
        if self.barrier and not self._sync.synchronous:
            raise InputError(
                f"{self.barrier.rstrip('.')}, which sync '{sync}' cannot wait for: use ps or p3."
            )
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._wrapped = True
        self._share_groups()
        # -- what a step has seen so far
        self._passes = 0  # backward calls that have ended
        self._fired: Counter[int] = Counter()  # by parameter, gradients that have come
        self._handed: set[int] = set()
        self._bits: dict[
            int, int
        ] = {}  # of gradients in the first step: whether somebody changed them
        self._task = -1  # the backward that runs
        self._steps = 0
        # -- how
        self._buckets: Buckets | None = None
        self._homing: Homing | None = None
        self._guards: Guards | None = None
        self._late: Lateness | None = None
        self._moments = Moments(self._device)  # of the first step
        self._eager: set[int] = set()  # parameters that no module waits for
        self._line = self._session.open(CPU)  # of words, and of homes
        self._sums = self._line  # what sums: on GPUs, another one
        settings = {"sync": sync, "barrier": self.barrier, "backward_passes": backward_passes,
                    "bucket": bucket, "debug": self._debug}  # fmt: skip
        try:
            check_same(self._exchange(describe(self._names, self._parameters, optimizer, settings)))
        except ValueError:
            self._line.close()
            raise
        if self._sums_for_sure:
            self._use_sums()
        elif self._sync.urgent:
            self._guards = Guards(model, self._numbers, self._wait)
        self._handles: list[Any] = [
            p.register_post_accumulate_grad_hook(partial(self._arrived, index))  # type: ignore[no-untyped-call]
            for index, p in enumerate(self._parameters)
        ]
        for register in (
            model.register_state_dict_pre_hook,
            model.register_load_state_dict_pre_hook,
        ):
            self._handles.append(register(self._before_state))  # type: ignore[no-untyped-call]
        self._session.optimizers.append(self)

    # -- as every optimizer ------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates, by the average over all ranks. All ranks take the same number of steps."""
        with self._telling():
            self._steps += 1
            if isinstance(self._inner, torch.optim.LBFGS) and closure is not None:
                return self._inner.step(partial(self._averaged, closure))  # type: ignore[no-untyped-call]
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._check_strangers()
            if self._homing is None and self._buckets is None:
                self._decide("")
            if self._homing is None:
                self._sum_rest()
                self._inner.step()
            else:
                self._step_at_homes(self._homing)
            return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """What has been handed in is not touched: it is not in p.grad any more."""
        self._inner.zero_grad(set_to_none)
        if not self._handed:
            self._forget()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._wrapped:
            raise RuntimeError(
                "parameters cannot be added to a wrapped optimizer: add them before sync.Optimizer(...)"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """As the plain optimizer would have it, gathered from the homes: all ranks call it."""
        if self._homing is None:
            return self._inner.state_dict()
        with self._telling():
            self._inner.state.update(self._homing.collect())
            try:
                return self._inner.state_dict()
            finally:
                self._inner.state.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict` of this or of a plain optimizer gave. All ranks call it."""
        with self._telling():
            if self._homing is not None:
                self._homing.settle()
            self._inner.load_state_dict(state_dict)
            self._share_groups()
            if self._homing is not None:
                self._homing.scatter()
                self._line.barrier()  # nobody pushes before all homes have it

    # -- what others have not ----------------------------------------------------------------------

    def synchronize(self) -> None:
        """Parameters are up to date, and nothing of this rank is under way: they may be read or written."""
        if self._homing is not None:
            with self._telling():
                self._homing.synchronize()

    def synchronize_gradients(self) -> None:
        """Averages over all ranks are in p.grad: call it between backward and step, on all ranks."""
        self._need_sums("somebody looks at gradients between backward and step")

    def clip_grad_norm(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> Tensor:
        """torch.nn.utils.clip_grad_norm_ of the averages; gives the norm. All ranks call it."""
        self._need_sums("clipping needs the norm of all gradients")
        return nn.utils.clip_grad_norm_(
            self._parameters, max_norm, norm_type, error_if_nonfinite=error_if_nonfinite
        )

    @property
    def log(self) -> list[Event]:
        """Updates at this rank's homes, in their order."""
        return self._homing.synchroniser.log if self._homing is not None else []

    def report(self) -> dict[str, Any]:
        """What has been sent and waited for on this rank, and why there is a barrier."""
        found: dict[str, Any] = {
            "sync": self._text, "barrier": self.barrier, "steps": self._steps,
            "bytes": 0, "messages": 0, "overtaken": 0, "waited": {},
            "unguarded": [self._names[index] for index in sorted(self._eager)],
        }  # fmt: skip
        if self._homing is not None:
            found.update(self._homing.counters)
            worst = sorted(self._homing.waited.items(), key=lambda w: -w[1])[:WORST]
            found["waited"] = {name: seconds for name, seconds in worst if seconds}
        elif self._buckets is not None:
            found["bytes"] = sum(self._sums.reduced.values())
            found["messages"] = self._buckets.sums
            found["waited"] = {"sums": self._buckets.waited}
        return found

    def close(self, failed: str = "") -> None:
        """Ends when nothing is under way on any rank. All ranks call it, unless one has `failed`."""
        if self._closed:
            return
        self._closed = True
        try:
            if not failed:
                if self._homing is not None:
                    self._homing.settle()
                self._line.barrier()  # homes stay while others need them
        except Exception as error:
            failed = str(error)
            raise
        finally:
            if failed:
                self._fail(failed)
            self._end()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """A GradScaler asks this before it looks at all gradients: it shows that there is one."""
        self._need_sums("a GradScaler looks at gradients between backward and step")
        return False

    # -- gradients ---------------------------------------------------------------------------------

    def _arrived(self, index: int, p: Tensor) -> None:
        """A backward has completed a gradient: a hook, on autograd's thread."""
        with self._telling():
            task = torch._C._current_graph_task_id()
            if task != self._task:
                self._task = task
                engine = torch.autograd.Variable._execution_engine
                engine.queue_callback(self._ended)
            self._fired[index] += 1
            last = self._passes >= self._each - 1
            if self._buckets is not None:
                if last:
                    self._buckets.give(index)
                return
            if self._fired[index] > self._each or index in self._handed:
                raise RuntimeError(
                    f"rank {self._session.rank} got another gradient of '{self._names[index]}' before "
                    f"step(), and backward_passes is {self._each}: set it to the number of backward calls "
                    "in a step, and call step() after each; with checkpoints, use_reentrant=False"
                )
            if self._homing is None:
                assert p.grad is not None
                if self._sync.collective:
                    self._moments.note(index)
                with self._moments.leaving_out():
                    self._bits[index] = _bits(p.grad)
            elif last:
                self._unguarded(self._homing, index)
                self._give(self._homing, index)

    def _ended(self) -> None:
        """A backward has ended."""
        self._task = -1
        self._passes += 1
        if self._buckets is not None and self._passes >= self._each:
            with self._telling():
                self._sum_rest()

    def _sum_rest(self) -> None:
        """All that has come since the last time is summed, if anything has."""
        assert self._buckets is not None
        if self._passes:
            self._buckets.finish(list(self._fired))
            self._forget()

    def _step_at_homes(self, homing: Homing) -> None:
        name = homing.changed() if self._handed else ""
        if name:
            raise RuntimeError(
                f"'{name}' was changed between backward and step, and sync '{self._text}' updates during "
                "the backward: change it before, or wrap with barrier=True"
            )
        for index in range(len(self._parameters)):
            if index not in self._handed:
                self._give(homing, index)
        homing.finish()
        self._forget()
        if self._guards is None:
            for index in range(len(self._parameters)):
                homing.wait(index)
        else:
            for index in sorted(self._eager):
                homing.wait(index)

    def _give(self, homing: Homing, index: int) -> None:
        """The gradient is ours from now on: zero_grad cannot reach what is still to be sent."""
        if not self._handed:
            homing.begin()
        p = self._parameters[index]
        gradient, p.grad = p.grad, None
        if gradient is not None:
            check_dense(self._names[index], gradient)
        self._handed.add(index)
        homing.give(index, gradient)

    def _wait(self, index: int) -> None:
        if self._homing is not None and self._homing.under_way(index):
            with self._telling():
                self._homing.wait(index)

    def _unguarded(self, homing: Homing, index: int) -> None:
        """A gradient of what is still under way: the forward has read it without waiting."""
        if self._guards is not None and homing.under_way(index) and index not in self._eager:
            self._warn_of({index})

    def _warn_of(self, indices: set[int]) -> None:
        self._eager |= indices
        name = self._names[min(indices)]
        more = f" (and {len(indices) - 1} more)" if len(indices) > 1 else ""
        logger.warning(
            "'%s'%s is read by the forward before its own module runs, so no module waits for it: "
            "step() does from now on.", name, more,
        )  # fmt: skip

    def _forget(self) -> None:
        self._passes = 0
        self._fired.clear()
        self._handed.clear()
        self._bits.clear()

    # -- which way ---------------------------------------------------------------------------------

    @property
    def _sums_for_sure(self) -> bool:
        return bool(self.barrier) or self._sync.bucketed

    def _needs_barrier(self, asked: bool) -> str:
        reason = "barrier=True" if asked else needs_barrier(self._inner) or ""
        if reason or self._sync.bucketed:
            return reason
        for name, p in zip(self._names, self._parameters, strict=True):
            if not p.is_contiguous() or p.is_complex():
                what = "complex" if p.is_complex() else "not contiguous (channels_last?)"
                return f"'{name}' is {what} and cannot be sent in slices"
        return ""

    def _need_sums(self, reason: str) -> None:
        with self._telling():
            if self._homing is not None:
                raise RuntimeError(
                    f"{reason}, and with sync '{self._text}' those of this step have left already: "
                    "wrap with barrier=True"
                )
            if self._buckets is None:
                self._decide(reason)
            self._sum_rest()

    def _decide(self, reason: str) -> None:
        """The first step: the last moment to find out that something needs a barrier."""
        for index, bits in self._bits.items():
            gradient = self._parameters[index].grad
            if gradient is not None and _bits(gradient) != bits:
                raise RuntimeError(
                    f"rank {self._session.rank} finds the gradient of '{self._names[index]}' changed after "
                    "backward, before it was summed (unscale_, clip_grad_norm_?): wrap with barrier=True, "
                    "or use optimizer.clip_grad_norm"
                )
        order = list(self._guards.order) if self._guards is not None else []
        every = self._exchange((reason, order))
        self.barrier = next((r for r, _ in every if r), "")
        if self.barrier and not self._sync.synchronous:
            raise RuntimeError(
                f"{self.barrier}, which sync '{self._text}' cannot wait for: choose ps"
            )
        if self.barrier:
            if self._guards is not None:
                self._guards.close()
                self._guards = None
            self._use_sums()
            return
        urgent = [*dict.fromkeys([*every[0][1], *range(len(self._parameters))])]
        if self._sync.collective:
            self._homing = self._everywhere(urgent)
        else:
            self._homing = Homing(
                self._names, self._parameters, self._inner, self._sync, self._line, self._exchange,
                urgent, stall=self._stall, note=self._note,
            )  # fmt: skip
        if self._guards is not None:
            unguarded = self._guards.learned(self._fired)
            if unguarded:
                self._warn_of(set(unguarded))

    def _everywhere(self, urgent: list[int]) -> Everywhere:
        """In an order that rank 0 makes of its first backward."""
        late, first = self._open_sums(), self._parameters[0]
        items, slices = items_of(
            self._names, self._parameters, self._sync, self._session.size, urgent
        )
        rate = rate_of(self._sums, self._device, first.dtype)
        ready = self._moments.seconds(len(self._parameters))
        turns = self._exchange(turns_of(items, slices, ready, rate))[0]
        return Everywhere(
            self._names, self._parameters, self._inner, self._sync, self._sums, self._exchange, urgent,
            turns=turns, late=late, debug=self._debug, note=self._note,
        )  # fmt: skip

    def _open_sums(self) -> Lateness:
        own = self._session
        if self._device.type == "cuda":
            self._sums = own.open(self._device)
        store = dist.distributed_c10d._get_default_store()
        self._late = Lateness(own.rank, own.size, store, f"sums {own.opened}", self._stall)
        return self._late

    def _use_sums(self) -> None:
        if self.barrier:
            logger.info("gradients are summed before the update, on all ranks: %s", self.barrier)
        late = self._open_sums()
        compressed = getattr(torch, self._sync.compressed) if self._sync.compressed else None
        self._buckets = Buckets(
            self._names, self._parameters, self._sums, self._exchange, late,
            nbytes=self._bucket, compressed=compressed, debug=self._debug, note=self._note,
        )  # fmt: skip

    # -- pieces ------------------------------------------------------------------------------------

    @property
    def _note(self) -> Callable[[str, str, float, float], None] | None:
        timeline = self._session.timeline
        return timeline.record if timeline is not None else None

    def _exchange(self, mine: Any) -> list[Any]:
        return exchange_over(self._line, CPU, mine)

    def _share_groups(self) -> None:
        """The dictionaries of the wrapped one: a scheduler that changes ours changes both."""
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def _before_state(self, *_: Any) -> None:
        self.synchronize()

    def _averaged(self, closure: Callable[[], Any]) -> Any:
        """LBFGS compares losses: ranks that saw different ones would go different ways."""
        with torch.enable_grad():
            loss = closure()
        every = self._exchange(float(torch.as_tensor(loss).detach()))
        return sum(every) / len(every)

    def _check_strangers(self) -> None:
        for group in self._inner.param_groups:
            for p in group["params"]:
                if p.grad is not None and id(p) not in self._numbers:
                    raise RuntimeError(
                        f"a parameter of shape {list(p.shape)} has a gradient and had requires_grad=False "
                        "when the optimizer was wrapped: wrap after it is unfrozen"
                    )

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """What goes wrong here is told to the others, who would wait for this rank."""
        try:
            yield
        except Exception as error:
            if not self._closed:
                self._fail(str(error))
            raise

    def _fail(self, reason: str) -> None:
        for line in {self._line, self._sums}:
            line.fail(reason)

    def _end(self) -> None:
        for handle in self._handles:
            handle.remove()
        if self._guards is not None:
            self._guards.close()
        if self._late is not None:
            self._late.close()
        if self._homing is not None:
            self._homing.close()
        for line in {self._line, self._sums}:
            line.close()
        self._session.optimizers.remove(self)


def _checked(sync: Sync, size: int) -> Sync:
    if sync.divided:
        raise InputError(
            "sync is 'sharded:parameters', and a module needs its parameters whole: use sharded, or a "
            "plan (raddle plan --sync sharded:parameters)."
        )
    if sync.server is not None and sync.server >= size:
        raise InputError(
            f"sync names rank {sync.server} and there are {size}: choose from 0 to {size - 1}"
        )
    return sync


def _trained(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> tuple[list[nn.Parameter], list[str]]:
    """The optimizer's parameters that need gradients, with the model's names for them."""
    known = {id(p): name for name, p in model.named_parameters()}
    parameters, names = [], []
    for g, group in enumerate(optimizer.param_groups):
        for number, p in enumerate(group["params"]):
            if p.requires_grad:
                parameters.append(p)
                names.append(known.get(id(p), f"parameter {number} of group {g}"))
    if not parameters:
        raise ValueError("the optimizer has no parameter that needs a gradient: nothing to average")
    return parameters, names


def _only_device(names: list[str], parameters: list[nn.Parameter]) -> torch.device:
    first = parameters[0].device
    for name, p in zip(names, parameters, strict=True):
        if p.device != first:
            raise ValueError(
                f"'{names[0]}' is on {first} and '{name}' on {p.device}: a rank has one device"
            )
    return first


def _bits(gradient: Tensor) -> int:
    """A sum over the bits of a gradient: it changes when somebody scales it, whatever is in it."""
    if gradient.layout != torch.strided or not gradient.numel():
        return 0
    held = gradient.detach().contiguous().view(-1)
    return int(held.view(torch.uint8).sum(dtype=torch.int64))
