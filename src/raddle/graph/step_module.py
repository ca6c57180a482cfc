"""The module that `capture` exports: the user's module with a batch and its loss.

torch.export sees only the tensors of the batch as inputs; what is no tensor is part of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from raddle.errors import InputError
from raddle.graph.arguments import CONSTANTS, BatchTemplate, Path, leaves, map_leaves, path_name
from raddle.graph.graph import Value
from raddle.graph.supervised import (
    Loss,
    Supervised,
    argument_names,
    call_model,
    split_metrics,
)


class TensorMark:
    """Stands for a tensor in a tree whose tensors were taken out."""


class Traced:
    """What a step notes while `forward` runs; torch.export undoes changes of the module itself."""

    def __init__(self) -> None:
        self.metrics: tuple[str, ...] = ()  # their names
        self.output: Any = None  # of the module's first call, with TensorMark for each tensor


class StepModule(nn.Module):
    """The module followed by its loss; returns the loss, the metrics, then the module's output tensors.

    The arguments of `forward` are the tensors of the batch, in order. copies_outputs: outputs that no
    operator computes, such as an input that is returned, become copies in the graph.
    """

    copies_outputs = False

    def __init__(self, model: nn.Module, batch: Any, loss: Loss | None) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise InputError(f"capture takes an nn.Module, not a {type(model).__name__}.")
        if loss is not None and not callable(loss):
            raise InputError(f"the loss is a {type(loss).__name__}: give loss(model, batch).")
        criterion = loss.criterion if isinstance(loss, Supervised) else loss
        if isinstance(criterion, nn.Module) and any(
            p.requires_grad for p in criterion.parameters()
        ):
            raise InputError("the loss has parameters of its own: make it a part of the model.")
        self.model = model
        # In a tuple, so that tensors of a loss module become constants, not parameters of the model.
        self._loss, self._batch = (loss,), (batch,)
        self.traced = Traced()
        self.training = model.training

    @property
    def loss(self) -> Loss | None:
        return self._loss[0]

    @property
    def batch(self) -> Any:
        return self._batch[0]

    def with_batch(self, batch: Any) -> StepModule:
        """Returns the same module and loss with another batch."""
        return type(self)(self.model, batch, self.loss)

    def first_is_loss(self, results: Sequence[Value]) -> bool:
        """Returns whether the first result is the loss: of a given loss, or a scalar of the module."""
        first = results[0] if results else None
        is_scalar = first is not None and first.shape == () and first.dtype.is_floating_point
        return self.loss is not None or is_scalar

    def forward(self, *tensors: Tensor) -> Any:
        """Runs the loss, which calls the module; refuses a module that changes requires_grad."""
        remaining = iter(tensors)
        batch = map_leaves(
            lambda _, leaf: next(remaining) if isinstance(leaf, Tensor) else leaf, self.batch
        )
        with _buffers_in_place(self.model), _same_requires_grad(self.model):
            return tuple(self._results(batch))

    def _results(self, batch: Any) -> list[Tensor]:
        """Returns the loss, the metrics, and the tensors in the outputs of the calls of the module."""
        if self.loss is None:
            output = self._call_model(batch)
            self._note((), [output])
            return _tensors(output)
        outputs: list[Any] = []
        hook = self.model.register_forward_hook(lambda m, arguments, out: outputs.append(out))
        try:
            loss, metrics = split_metrics(self.loss(self.model, batch))
        finally:
            hook.remove()
        self._note(tuple(metrics), outputs[:1])
        return [loss, *(metric.detach() for metric in metrics.values()), *_tensors(outputs)]

    def _call_model(self, batch: Any) -> Any:
        """Returns the output of the module if there is no loss that calls it."""
        return call_model(self.model, batch)

    def _note(self, metrics: tuple[str, ...], outputs: list[Any]) -> None:
        first = outputs[0] if outputs else None
        self.traced.metrics = metrics
        self.traced.output = map_leaves(
            lambda _, leaf: TensorMark if isinstance(leaf, Tensor) else leaf, first
        )


class OutputModule(StepModule):
    """The module alone, without a loss; the batch has its arguments by name.

    positional: the number of the first arguments that are not passed by keyword.
    """

    copies_outputs = True

    def __init__(self, model: nn.Module, batch: Mapping[str, Any], positional: int) -> None:
        super().__init__(model, batch, None)
        self.positional = positional

    def with_batch(self, batch: Any) -> OutputModule:
        """Returns the same module with other arguments."""
        return OutputModule(self.model, batch, self.positional)

    def first_is_loss(self, results: Sequence[Value]) -> bool:
        """Returns False: there is no loss."""
        return False

    def _call_model(self, batch: Any) -> Any:
        arguments = list(batch.items())
        positional = [value for _, value in arguments[: self.positional]]
        return self.model(*positional, **dict(arguments[self.positional :]))


def batch_template(model: nn.Module, batch: Any, loss: Loss | None) -> BatchTemplate:
    """Returns the names of the tensors in a batch, and its constants."""
    top: dict[Any, str] = {}  # position in the batch -> name
    if isinstance(batch, (list, tuple)) and loss is None:
        top = dict(enumerate(argument_names(model, len(batch))))
    elif isinstance(batch, (list, tuple)) and isinstance(loss, Supervised):
        top = loss.names(model, batch)
    elif isinstance(batch, Tensor) and (loss is None or isinstance(loss, Supervised)):
        return BatchTemplate({(): argument_names(model, 1)[0]}, {})
    inputs = len(top) - (loss.targets if isinstance(loss, Supervised) else 0)
    names, constants = dict[Path, str](), dict[Path, Any]()
    for path, leaf in leaves(batch):
        name = path_name(path)
        if path and path[0] in top:
            # The only input may be a mapping, whose keys are keyword arguments of the model.
            is_keyword = inputs == 1 and path[0] == 0 and isinstance(batch[0], Mapping)
            is_keyword = is_keyword and loss is not None
            name = path_name(path[1:]) if is_keyword else path_name((top[path[0]], *path[1:]))
        if isinstance(leaf, Tensor):
            names[path] = name
        elif isinstance(leaf, CONSTANTS):
            constants[path] = leaf
        else:
            raise InputError(f"'{name}' is a {type(leaf).__name__}: a batch consists of tensors.")
    return BatchTemplate(names, constants)


def _tensors(output: Any) -> list[Tensor]:
    """Returns all tensors in the output of a module, which may be nested."""
    return [leaf for _, leaf in leaves(output) if isinstance(leaf, Tensor)]


@contextmanager
def _buffers_in_place(model: nn.Module) -> Iterator[None]:
    """Turns the assignment of a new tensor to a buffer into a write in place."""
    buffers = [(m, k, b) for m in model.modules() for k, b in m.named_buffers(recurse=False)]
    yield
    for owner, key, buffer in buffers:
        if (assigned := getattr(owner, key)) is not buffer:
            buffer.copy_(assigned.detach())
            setattr(owner, key, buffer)


@contextmanager
def _same_requires_grad(model: nn.Module) -> Iterator[None]:
    """Refuses a module that changes requires_grad of a parameter while it runs."""
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    yield
    for name, p in model.named_parameters():
        if p.requires_grad != before.get(name, p.requires_grad):
            raise InputError(
                f"the model changes requires_grad of '{name}' in its forward, which cannot be "
                "captured: freeze parameters before."
            )
