"""Scales the loss, so that small gradients are not rounded to zero in float16, as torch.amp.GradScaler.

The loss is multiplied by a factor before the backward, and the gradients are divided by it before the
update. If a gradient is infinite or NaN on any rank, all ranks skip the update, and the factor becomes
smaller; after many good steps it becomes larger.

torch.amp.GradScaler decides on each rank by itself, and a rank of a plan has only some of the gradients. So
the ranks add up what they found, on the device. A fused optimizer of torch.optim (`fused=True`) skips on
the device too, and no rank waits for its GPU. Other optimizers cannot: the rank reads one number, and
waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from raddle.errors import InputError
from raddle.plans.pipelining import is_asynchronous
from raddle.program.program import Program
from raddle.transport.base import Transport

FOUND_INF_TAG = 2**31 - 4  # programs do not use this tag
# The defaults of torch.amp.GradScaler
INITIAL_SCALE, GROWTH, BACKOFF, GROWTH_INTERVAL = 2.0**16, 2.0, 0.5, 2000


def make_scaler(program: Program, transport: Transport, place: torch.device) -> LossScaler | None:
    """Returns the scaler of a program's loss; None if its precision needs none.

    Under autocast, a float64 model computes in float64, so its loss is not scaled either.
    """
    plan, parameters = program.plan, program.graph.parameters
    if not plan.parsed_precision.scales_loss or all(p.dtype != torch.float32 for p in parameters):
        return None
    if is_asynchronous(plan):
        raise InputError(
            f"the schedule '{plan.schedule}' updates parameters one by one, and with fp16 an update needs "
            "all gradients of a step: use the precision bf16, or a schedule with a flush."
        )
    return LossScaler(transport, place)


class LossScaler:
    """The factor of the loss, the same on all ranks.

    scale: the factor; good_steps: steps without infinite gradients since it last changed. Both are tensors
    on the device, so that no step waits for them.
    """

    def __init__(self, transport: Transport, place: torch.device) -> None:
        self.transport = transport
        self.scale = torch.full((), INITIAL_SCALE, dtype=torch.float32, device=place)
        self.good_steps = torch.zeros((), dtype=torch.int32, device=place)

    def step(self, optimizer: torch.optim.Optimizer, found_inf: Tensor) -> None:
        """Lets the optimizer update, unless `found_inf`; then adapts the factor. All ranks call it."""
        if optimizer.defaults.get("fused"):
            # The fused optimizers of torch.optim read this attribute, which GradScaler sets too.
            optimizer.found_inf = found_inf  # type: ignore[attr-defined]
            try:
                optimizer.step()
            finally:
                del optimizer.found_inf  # type: ignore[attr-defined]
        elif not found_inf.item():
            optimizer.step()
        self._adapt(found_inf > 0)

    def unscale(self, parameters: Iterable[Tensor]) -> Tensor:
        """Divides the gradients of this rank by the factor; returns 1.0 if one is not finite, else 0.0.

        It returns the same on all ranks, which all call it.
        """
        with_gradient = [p for p in parameters if p.grad is not None]
        inverse = self.scale.double().reciprocal().float()
        is_infinite = torch.zeros((), dtype=torch.float32, device=self.scale.device)
        gradients = [p.grad for p in with_gradient if p.grad is not None]
        if gradients:
            largest = torch.nn.utils.get_total_norm(gradients, float("inf"))
            is_infinite = (~largest.isfinite()).float().to(is_infinite.device)
        for parameter, gradient in zip(with_gradient, gradients, strict=True):
            parameter.grad = gradient * inverse.to(gradient.dtype)
        all_ranks = tuple(range(self.transport.size))
        self.transport.all_reduce(
            all_ranks, FOUND_INF_TAG, is_infinite.view(1), "infinite gradients"
        ).wait()
        return is_infinite.clamp(max=1.0)

    def _adapt(self, skipped: Tensor) -> None:
        """Makes the factor smaller after a skipped step, and larger after many good steps."""
        good_steps = self.good_steps + 1
        larger = self.scale * GROWTH
        grows = (good_steps == GROWTH_INTERVAL) & larger.isfinite()
        self.scale.copy_(
            torch.where(skipped, self.scale * BACKOFF, torch.where(grows, larger, self.scale))
        )
        resets = skipped | (good_steps == GROWTH_INTERVAL)
        self.good_steps.copy_(torch.where(resets, torch.zeros_like(good_steps), good_steps))

    def state_dict(self) -> dict[str, float | int]:
        """Returns the factor and the number of good steps, for checkpoints."""
        return {"scale": self.scale.item(), "good_steps": int(self.good_steps.item())}

    def load_state_dict(self, state: Mapping[str, float | int]) -> None:
        """Loads the result of `state_dict`."""
        if missing := next((key for key in ("scale", "good_steps") if key not in state), None):
            raise InputError(
                f"the state of the loss scaler has no '{missing}': save it with this version's "
                "optimizer_state_dict()."
            )
        self.scale.fill_(state["scale"])
        self.good_steps.fill_(state["good_steps"])
