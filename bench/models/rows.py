"""What a row of the sweep is: an architecture of a library, and how to make a small model of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from raddle.graph.supervised import Supervised, supervised

MAX_PARAMETERS = 140_000_000  # of a model that is measured


class Example(NamedTuple):
    """A small model with the arguments of `raddle.capture`."""

    model: nn.Module
    inputs: Sequence[Any] | Mapping[str, Any]
    targets: Sequence[Tensor]
    criterion: Callable[..., Tensor]  # (output, *targets) -> loss
    configuration: str  # the class or the name that was built

    @property
    def batch(self) -> Any:
        """The inputs, then the targets."""
        if isinstance(self.inputs, Mapping):
            assert not self.targets
            return dict(self.inputs)
        return [*self.inputs, *self.targets]

    @property
    def loss(self) -> Supervised:
        return supervised(self.criterion, targets=len(self.targets))


@dataclass(frozen=True)
class Row:
    """One architecture. build: makes the example; what it raises becomes the row's reason."""

    library: str
    name: str
    build: Callable[[], Example]


def first_tensor_loss(output: Any, *_: Any) -> Tensor:
    """The mean square of the first tensor with a gradient in the output of a module."""
    return next(_float_tensors(output)).square().mean()


def _float_tensors(output: Any) -> Any:
    if isinstance(output, Tensor):
        if output.is_floating_point() and output.requires_grad:
            yield output
    elif hasattr(output, "values"):
        for part in output.values():
            yield from _float_tensors(part)
    elif hasattr(output, "sample"):  # outputs of diffusers
        yield from _float_tensors(output.sample)
    elif isinstance(output, (list, tuple)):
        for part in output:
            yield from _float_tensors(part)
