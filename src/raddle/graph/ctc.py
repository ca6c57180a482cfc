"""Lets torch.export trace the loss of connectionist temporal classification, which it refuses.

torch cannot say which shapes `ctc_loss` returns without running it. While a module is exported, the loss of
each sample is one operator with a known shape; the sum or mean over samples is written in plain calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from raddle.errors import InputError

A = torch.ops.aten
CTC_LOSS: Any = F.ctc_loss


@torch.library.custom_op("raddle::ctc_losses", mutates_args=())
def ctc_losses(
    x: Tensor, targets: Tensor, lengths: Tensor, target_lengths: Tensor, blank: int,
    zero_infinity: bool,
) -> Tensor:  # fmt: skip
    """Returns the loss of each sample; the arguments are those of F.ctc_loss."""
    losses: Tensor = CTC_LOSS(x, targets, lengths, target_lengths, blank, "none", zero_infinity)
    return losses


@ctc_losses.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape[1])


@torch.library.custom_op("raddle::ctc_gradient", mutates_args=())
def _ctc_gradient(
    gradient: Tensor, x: Tensor, targets: Tensor, lengths: Tensor, target_lengths: Tensor, blank: int,
    zero_infinity: bool,
) -> Tensor:  # fmt: skip
    """Returns the gradient of x, given that of the losses."""
    arguments = (x, targets, lengths, target_lengths)
    losses, alpha = A._ctc_loss.Tensor(*arguments, blank, zero_infinity)
    dx: Tensor = A._ctc_loss_backward.Tensor(
        gradient, *arguments, losses, alpha, blank, zero_infinity
    )
    return dx


@_ctc_gradient.register_fake
def _(gradient: Tensor, x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


def _save_arguments(ctx: Any, inputs: Any, output: Tensor) -> None:
    *tensors, ctx.blank, ctx.zero_infinity = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    dx = _ctc_gradient(gradient, *ctx.saved_tensors, ctx.blank, ctx.zero_infinity)
    return dx, None, None, None, None, None


ctc_losses.register_autograd(_backward, setup_context=_save_arguments)


class CtcLosses(TorchFunctionMode):
    """A mode in which `F.ctc_loss` and `nn.CTCLoss` call `raddle::ctc_losses`."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is CTC_LOSS:
            return _loss(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: str = "mean", zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """Computes F.ctc_loss, whose arguments these are."""
    if targets.dim() != 2 or log_probs.dim() != 3:
        raise InputError(
            f"ctc_loss with log_probs of shape {tuple(log_probs.shape)} and targets of shape "
            f"{tuple(targets.shape)} cannot be captured: give targets of shape (samples, length)."
        )
    lengths, sizes = (
        n if isinstance(n, Tensor) else torch.tensor(n) for n in (input_lengths, target_lengths)
    )
    losses: Tensor = ctc_losses(log_probs, targets, lengths, sizes, blank, zero_infinity)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else (losses / sizes.clamp_min(1)).mean()
