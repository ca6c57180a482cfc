"""Exports a module with its loss by torch.export, the first step of a capture (capture.py).

torch.export drops custom autograd functions and hooks on gradients without a word, so they are refused
here.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from raddle.errors import InputError
from raddle.graph.certain_values import LIBRARIES, CertainValues
from raddle.graph.ctc import CtcLosses
from raddle.graph.snapshot import restore_on_exit
from raddle.graph.step_module import StepModule, Traced

# The methods of Tensor that register a hook on its gradient.
HOOKS = [n for n in dir(Tensor) if n.startswith("register_") and n.endswith("hook")]


def export(
    step: StepModule, inputs: Sequence[Tensor]
) -> tuple[torch.export.ExportedProgram, Traced]:
    """Exports a step; also returns what it noted. Raises InputError with the place in the user's code."""
    model = step.model
    on_meta = any(t.is_meta for t in [*model.parameters(), *model.buffers()])
    try:
        default_device = torch.device("meta") if on_meta else nullcontext()
        with (
            restore_on_exit(step), _refuse_custom_backward(), _without_warnings(), default_device,
            _without_partial_graph(), CertainValues(), CtcLosses(),
        ):  # fmt: skip
            program = torch.export.export(step, tuple(map(_distinct_input, inputs)), strict=False)
            return program, copy.copy(step.traced)
    except InputError:
        raise
    except Exception as error:
        name = type(model).__name__
        raise InputError(
            f"{name} cannot be captured{_user_location(error)}: {_reason(error)}"
        ) from error


def _reason(error: Exception) -> str:
    """Returns why an export failed, and what to do."""
    if "data-dependent" in str(error) or "DataDependent" in type(error).__name__:
        return (
            "the line asks for the value of a tensor, which is known only in a step. Compute with tensors "
            "there (torch.where, fixed sizes), or before the step, and give the result as an input."
        )
    message = str(error).strip().splitlines()
    reason = message[0].rstrip(".") if message else type(error).__name__
    return f"{reason}. Check the model and its inputs with torch.export.export on its own."


def _distinct_input(tensor: Tensor) -> Tensor:
    """Returns a new tensor of the same shape, strides and type.

    torch.export identifies an input by its tensor object. If one object were two inputs, or an input and a
    parameter, it would confuse them.
    """
    empty = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return empty.requires_grad_(tensor.requires_grad)


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
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not frame.filename.startswith(LIBRARIES) and "contextlib" not in frame.filename:
            return f" at {frame.filename}:{frame.lineno} in {frame.name} ({frame.line})"
    return ""


def source_location(node: Node) -> str:
    """Returns the place in the user's code that a node comes from, as torch.export records it, or ""."""
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    frame_lines = [
        i for i, line in enumerate(lines)
        if line.strip().startswith("File ") and os.path.dirname(__file__) not in line
    ]  # fmt: skip
    if not frame_lines:
        return ""
    match = re.search(r'File "(.*)", line (\d+), in (\w+)', lines[frame_lines[-1]])
    code = lines[frame_lines[-1] + 1].strip() if frame_lines[-1] + 1 < len(lines) else ""
    return f" ({match[1]}:{match[2]} in {match[3]}: {code})" if match else ""
