"""The contract of losses, `loss(model, batch)`, and its adapter for a criterion of output and target.

A loss calls the model and returns a floating-point scalar, or a scalar and a dictionary of metrics:

    def loss(model, batch):
        images, labels = batch
        scores = model(images)
        return F.cross_entropy(scores, labels), {"accuracy": (scores.argmax(1) == labels).float().mean()}
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from raddle.errors import InputError
from raddle.graph.arguments import BatchTemplate

Loss = Callable[[nn.Module, Any], Any]  # (model, batch) -> scalar, or (scalar, metrics by name)
TARGET_NAMES = ("target", "targets", "label", "labels")  # names of the target in a mapping


@dataclass(frozen=True)
class Supervised:
    """The loss `criterion(model(*inputs), *targets)`; made by `supervised`.

    targets: how many of the last entries of a batch are targets. In a mapping, the targets have one of the
    names in TARGET_NAMES.
    """

    criterion: Callable[..., Any]
    targets: int = 1

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        """Returns what the criterion returns for the output of the model and the targets."""
        inputs, targets = self.split(batch)
        return self.criterion(call_model(model, inputs), *targets)

    def split(self, batch: Any) -> tuple[Any, list[Any]]:
        """Returns the arguments of the model (a list or a mapping) and the list of targets."""
        if isinstance(batch, Mapping):
            names = [name for name in batch if name in TARGET_NAMES] if self.targets else []
            if len(names) != self.targets:
                raise InputError(
                    f"a batch with the keys {', '.join(map(str, batch))} has {len(names)} targets, not "
                    f"{self.targets}: call a target {', '.join(TARGET_NAMES)}, or write loss(model, batch) "
                    "yourself."
                )
            inputs = {key: value for key, value in batch.items() if key not in names}
            return inputs, [batch[name] for name in names]
        parts = list(batch) if isinstance(batch, (list, tuple)) else [batch]
        count = len(parts) - self.targets
        if count < 1:
            raise InputError(
                f"a batch of {type(batch).__name__} with {len(parts)} parts has no input beside "
                f"{self.targets} targets: give (*inputs, target), or write loss(model, batch) yourself."
            )
        return model_arguments(parts[:count]), parts[count:]

    def inputs(self, batch: Any, template: BatchTemplate | None) -> Any:
        """Returns the inputs of a batch with or without targets: a list or a mapping.

        template: of the captured batch, which had targets.
        """
        if isinstance(batch, Mapping):
            return {key: value for key, value in batch.items() if key not in TARGET_NAMES}
        parts = list(batch) if isinstance(batch, (list, tuple)) else [batch]
        paths = [*template.names, *template.constants] if template is not None else []
        is_whole = len(parts) == len({path[:1] for path in paths})
        return model_arguments(parts[: len(parts) - self.targets] if is_whole else parts)

    def names(self, model: nn.Module, batch: Any) -> dict[Any, str]:
        """Returns a name for each part of a list or tuple: those of arguments, then target, target1, ..."""
        names = argument_names(model, len(batch) - self.targets)
        names += ["target" if not i else f"target{i}" for i in range(self.targets)]
        return dict(enumerate(names))


def supervised(criterion: Callable[..., Any], *, targets: int = 1) -> Supervised:
    """Returns the loss that compares the output of a model with a target, as `loss(model, batch)`.

    For a batch (*inputs, target) it is criterion(model(*inputs), target); if the only input is a mapping,
    model(**input). For a batch that is a mapping, such as a dict, the entry called target, targets, label
    or labels is the target, and the others are keyword arguments of the model. `targets` is the number of
    targets; 0: the criterion takes the output alone.

    >>> import torch
    >>> from torch.nn import functional as F
    >>> model, x, y = nn.Linear(4, 2), torch.ones(3, 4), torch.zeros(3, 2)
    >>> loss = supervised(F.mse_loss)
    >>> bool(loss(model, (x, y)) == F.mse_loss(model(x), y) == loss(model, {"input": x, "target": y}))
    True
    """
    return Supervised(criterion, targets)


def call_model(model: nn.Module, arguments: Any) -> Any:
    """Returns the output of a model: a mapping has keyword arguments, a list or tuple positional ones."""
    if isinstance(arguments, Mapping):
        return model(**arguments)
    return model(*arguments) if isinstance(arguments, (list, tuple)) else model(arguments)


def model_arguments(inputs: Sequence[Any]) -> Any:
    """Returns the arguments of a model: the inputs or, if the only one is a mapping, this mapping."""
    return inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Mapping) else list(inputs)


def argument_names(model: nn.Module, count: int) -> list[str]:
    """Returns the names of the first `count` positional arguments of a model."""
    parameters = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD][:count]
    return names + [f"input{i}" for i in range(len(names), count)]


def split_metrics(result: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the scalar and the metrics that a loss returned. Raises InputError for anything else."""
    loss, metrics = result, dict[str, Any]()
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
        loss, metrics = result
    if not (isinstance(loss, Tensor) and loss.shape == () and loss.is_floating_point()):
        kind = (
            f"tensor of shape {tuple(loss.shape)}, {loss.dtype}" if isinstance(loss, Tensor) else ""
        )
        raise InputError(
            f"the loss is a {kind or type(loss).__name__}: return one floating-point scalar, or the scalar "
            "and a dict of metrics."
        )
    for name, metric in metrics.items():
        if not isinstance(name, str) or not isinstance(metric, Tensor) or metric.shape != ():
            kind = f"tensor of shape {tuple(metric.shape)}" if isinstance(metric, Tensor) else ""
            raise InputError(
                f"the metric {name!r} is a {kind or type(metric).__name__}: a metric is a scalar tensor, "
                "such as a mean over the samples."
            )
    return loss, dict(metrics)
