"""What a training step or an evaluation returns: the loss, the metrics and the norm of the gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, repr=False)
class StepResult:
    """The results of one step, the same on every rank; float(result) is the loss.

    >>> import torch
    >>> result = StepResult(torch.tensor(0.5), {"accuracy": torch.tensor(0.75)})
    >>> result, float(result), float(result.metrics["accuracy"])
    (StepResult(loss=0.5, accuracy=0.75), 0.5, 0.75)
    """

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    grad_norm: Tensor | None = None  # before clipping; None: gradients are not clipped

    def __float__(self) -> float:
        return float(self.loss)

    def __repr__(self) -> str:
        values = {"loss": self.loss, **self.metrics}
        if self.grad_norm is not None:
            values["grad_norm"] = self.grad_norm
        return f"StepResult({', '.join(f'{name}={float(v):.6g}' for name, v in values.items())})"
