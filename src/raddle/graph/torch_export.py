"""Exports a module with its loss by torch.export, the first step of a capture (capture.py).

torch.export drops custom autograd functions and hooks on gradients without a word, so they are refused
here.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from raddle.errors import InputError
from raddle.graph.certain_values import CertainValues
from raddle.graph.snapshot import restore_on_exit

# The methods of Tensor that register a hook on its gradient.
HOOKS = [n for n in dir(Tensor) if n.startswith("register_") and n.endswith("hook")]


class StepModule(nn.Module):
    """The module followed by its loss; returns the loss first, then every tensor that the module returns.

    keyword_names: names of the inputs if the module takes keyword arguments, else None. The first
    `input_count` arguments of `forward` are inputs of the module, the others are targets.
    """

    def __init__(
        self,
        model: nn.Module,
        keyword_names: list[str] | None,
        input_count: int,
        loss: Callable[..., Any] | None,
    ) -> None:
        super().__init__()
        self.model, self.keyword_names, self.input_count = model, keyword_names, input_count
        # In a tuple, so that tensors of a loss module become constants, not parameters of the model.
        self.loss = (loss,)
        self.training = model.training

    def forward(self, *tensors: Any) -> Any:
        """Runs the module, and the loss if there is one; refuses a module that changes requires_grad."""
        inputs, targets = tensors[: self.input_count], tensors[self.input_count :]
        buffers = [
            (m, k, b) for m in self.model.modules() for k, b in m.named_buffers(recurse=False)
        ]
        requires_grad = {name: p.requires_grad for name, p in self.model.named_parameters()}
        if self.keyword_names is None:
            output = self.model(*inputs)
        else:
            output = self.model(**dict(zip(self.keyword_names, inputs, strict=True)))
        for owner, key, buffer in buffers:
            # A buffer that was assigned is treated as one that was written in place.
            if (assigned := getattr(owner, key)) is not buffer:
                buffer.copy_(assigned.detach())
                setattr(owner, key, buffer)
        for name, p in self.model.named_parameters():
            if p.requires_grad != requires_grad.get(name, p.requires_grad):
                raise InputError(
                    f"the model changes requires_grad of '{name}' in its forward, which cannot be "
                    "captured: freeze parameters before."
                )
        (function,) = self.loss
        loss = [] if function is None else [_check_scalar(function(output, *targets))]
        return tuple(loss + _tensors(output))


def _check_scalar(loss: Any) -> Tensor:
    """Returns the loss. Raises InputError unless it is a floating-point scalar."""
    if isinstance(loss, Tensor) and loss.shape == () and loss.is_floating_point():
        return loss
    shape = f" of shape {tuple(loss.shape)}, {loss.dtype}" if isinstance(loss, Tensor) else ""
    raise InputError(
        f"the loss is a {type(loss).__name__}{shape}: return one floating-point scalar."
    )


def _tensors(output: Any) -> list[Tensor]:
    """Returns all tensors in the output of a module, which may be nested."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = output.values()
    elif dataclasses.is_dataclass(output):
        output = [getattr(output, f.name) for f in dataclasses.fields(output)]
    elif not isinstance(output, (list, tuple)):
        return []
    return [t for part in output for t in _tensors(part)]


def export(
    step: StepModule, inputs: Sequence[Any], model: nn.Module
) -> torch.export.ExportedProgram:
    """Exports `step`, which wraps `model`. Raises InputError with the place in the user's code."""
    on_meta = any(t.is_meta for t in [*model.parameters(), *model.buffers()])
    try:
        default_device = torch.device("meta") if on_meta else nullcontext()
        with (
            restore_on_exit(step), _refuse_custom_backward(), _without_warnings(), default_device,
            _without_partial_graph(), CertainValues(),
        ):  # fmt: skip
            return torch.export.export(step, tuple(map(_distinct_inputs, inputs)), strict=False)
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
            f"{type(model).__name__} cannot be captured{_user_location(error)}: {reason}. {advice}"
        ) from error


def _distinct_inputs(tree: Any) -> Any:
    """Returns the same arguments with a new tensor for each one, of the same shape, strides and type.

    torch.export identifies an input by its tensor object. If one object were two inputs, or an input and a
    parameter, it would confuse them.
    """
    if isinstance(tree, Tensor):
        tensor = torch.empty_strided(
            tree.shape, tree.stride(), dtype=tree.dtype, device=tree.device
        )
        return tensor.requires_grad_(tree.requires_grad)
    if isinstance(tree, Mapping):
        copied: Any = copy.copy(tree)
        for key, value in tree.items():
            copied[key] = _distinct_inputs(value)
        return copied
    if isinstance(tree, (list, tuple)):
        parts = [_distinct_inputs(value) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Turns off warnings and log messages while torch.export runs."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of attributes that its own modules assign
            yield
    finally:
        logging.disable(disabled)


@contextmanager
def _without_partial_graph() -> Iterator[None]:
    """Leaves out what is written to stderr if torch.export fails: it prints an unfinished graph."""
    written = io.StringIO()
    with contextlib.redirect_stderr(written):
        yield
    sys.stderr.write(written.getvalue())  # it did not fail: this is the model's output


@contextmanager
def _refuse_custom_backward() -> Iterator[None]:
    """Refuses custom autograd functions and hooks on gradients while torch.export runs.

    torch.export drops their backward silently, and the exported program has no trace of them. So the entry
    points of torch are replaced during the export.
    """

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        # Non-reentrant checkpoints use the first, which changes nothing. The second is the backward of an
        # operator of torch.library, which belongs to the operator wherever it runs.
        if cls.__name__ == "_NoopSaveInputs" or cls.__name__.startswith("GeneratedBackwardFor_"):
            return apply.__func__(cls, *args, **kwargs)
        reentrant = "Checkpoint" in cls.__name__
        hint = " (for a checkpoint, say use_reentrant=False)" if reentrant else ""
        raise InputError(
            f"the model uses the autograd function '{cls.__name__}' (or a backward hook), whose "
            f"backward cannot be captured: write it in plain operators{hint}."
        )

    def refuse_hook(tensor: Tensor, hook: Any) -> Any:
        raise InputError("the model registers a hook on a gradient, which cannot be captured.")

    apply = torch.autograd.Function.__dict__["apply"]
    hooks = {name: getattr(Tensor, name) for name in HOOKS}
    torch.autograd.Function.apply = classmethod(refuse)  # type: ignore[assignment,method-assign]
    for name in hooks:
        setattr(Tensor, name, refuse_hook)
    try:
        yield
    finally:
        torch.autograd.Function.apply = apply  # type: ignore[method-assign]
        for name, hook in hooks.items():
            setattr(Tensor, name, hook)


def _user_location(error: BaseException) -> str:
    """Returns the place in the user's code where an export failed.

    The place is the innermost frame that is neither in torch nor in raddle.
    """
    # With a separator at the end: torchvision is no part of torch.
    library_folders = tuple(
        os.path.dirname(file) + os.sep for file in (torch.__file__, os.path.dirname(__file__))
    )
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if (
            not frame.filename.startswith((*library_folders, "<"))
            and "contextlib" not in frame.filename
        ):
            return f" at {frame.filename}:{frame.lineno} in {frame.name} ({frame.line})"
    return ""
