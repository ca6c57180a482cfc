"""The export of a module with its loss: what torch.export would lose without a word is refused here."""

from __future__ import annotations

import dataclasses
import logging
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from raddle.errors import InputError


class Step(nn.Module):
    """The module and its loss; returns the loss first, then every tensor that the module returns."""

    def __init__(
        self, model: nn.Module, keys: list[str] | None, count: int, loss: Callable[..., Any] | None
    ) -> None:
        super().__init__()
        self.model, self.keys, self.count = model, keys, count
        # In a tuple: what a loss module holds are constants, not states of the model.
        self.loss = (loss,)
        self.training = model.training

    def forward(self, *tensors: Any) -> Any:
        given, targets = tensors[: self.count], tensors[self.count :]
        before = [
            (m, k, b) for m in self.model.modules() for k, b in m.named_buffers(recurse=False)
        ]
        if self.keys is None:
            output = self.model(*given)
        else:
            output = self.model(**dict(zip(self.keys, given, strict=True)))
        for owner, key, buffer in before:
            if (now := getattr(owner, key)) is not buffer:  # assigned anew: the same as written
                buffer.copy_(now.detach())
                setattr(owner, key, buffer)
        (function,) = self.loss
        loss = [] if function is None else [_scalar(function(output, *targets))]
        return tuple(loss + _tensors(output))


def _scalar(loss: Any) -> Tensor:
    if isinstance(loss, Tensor) and loss.shape == () and loss.is_floating_point():
        return loss
    shape = f" of shape {tuple(loss.shape)}, {loss.dtype}" if isinstance(loss, Tensor) else ""
    raise InputError(
        f"the loss is a {type(loss).__name__}{shape}: return one floating-point scalar."
    )


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = output.values()
    elif dataclasses.is_dataclass(output):
        output = [getattr(output, f.name) for f in dataclasses.fields(output)]
    elif not isinstance(output, (list, tuple)):
        return []
    return [t for part in output for t in _tensors(part)]


def export(step: Step, inputs: Sequence[Any], model: nn.Module) -> torch.export.ExportedProgram:
    on_meta = any(t.is_meta for t in [*model.parameters(), *model.buffers()])
    try:
        with _unchanged(model), _refusing_custom_backwards(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on attributes that the modules of torch itself assign
            with torch.device("meta") if on_meta else nullcontext():
                return torch.export.export(step, tuple(inputs), strict=False)
    except InputError:
        raise
    except Exception as error:
        message = str(error).strip().splitlines()
        reason = message[0].rstrip(".") if message else type(error).__name__
        if "data-dependent" in str(error) or "DataDependent" in type(error).__name__:
            advice = "Rewrite that line so that it does not depend on the values of tensors."
        else:
            advice = "Check the model and its inputs with torch.export.export on its own."
        raise InputError(
            f"{type(model).__name__} cannot be captured{_place(error)}: {reason}. {advice}"
        ) from error


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Puts back what tracing leaves in a module: tensors that are attributes; and keeps torch quiet."""
    kept = [
        (module, name, value, value.detach().clone())
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    ]
    names = [(module, set(vars(module))) for module in model.modules()]
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        for module, before in names:
            for name in set(vars(module)) - before:
                delattr(module, name)
        for module, name, value, numbers in kept:
            value.detach().copy_(numbers)
            setattr(module, name, value)


@contextmanager
def _refusing_custom_backwards() -> Iterator[None]:
    """While tracing, what export would drop without a word is refused: backwards of the user's own.

    There is no other sign of them in an exported program, so torch's entry points are replaced for as
    long as the export runs.
    """

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__name__ == "_NoopSaveInputs":  # of checkpoints without re-entry: changes nothing
            return apply.__func__(cls, *args, **kwargs)
        reentrant = "Checkpoint" in cls.__name__
        hint = " (for a checkpoint, say use_reentrant=False)" if reentrant else ""
        raise InputError(
            f"the model uses the autograd function '{cls.__name__}' (or a backward hook), whose "
            f"backward cannot be captured: write it in plain operators{hint}."
        )

    def refuse_hook(tensor: Tensor, hook: Any) -> Any:
        raise InputError("the model registers a hook on a gradient, which cannot be captured.")

    apply, hook = torch.autograd.Function.__dict__["apply"], torch.Tensor.register_hook
    torch.autograd.Function.apply = classmethod(refuse)  # type: ignore[assignment,method-assign]
    torch.Tensor.register_hook = refuse_hook  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = apply  # type: ignore[method-assign]
        torch.Tensor.register_hook = hook  # type: ignore[method-assign]


def _place(error: BaseException) -> str:
    """Where in the user's code an export failed: the innermost frame outside of torch and raddle."""
    own = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not frame.filename.startswith((*own, "<")) and "contextlib" not in frame.filename:
            return f" at {frame.filename}:{frame.lineno} in {frame.name} ({frame.line})"
    return ""
