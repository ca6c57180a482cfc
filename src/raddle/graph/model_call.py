"""Finds the arguments with which a loss calls the model, for a batch that may have no labels."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from raddle.errors import InputError
from raddle.graph.supervised import Loss, argument_names


class ModelCall(NamedTuple):
    """One call of a model."""

    arguments: dict[str, Any]  # by name; first those that are passed by position
    positional: int


class _ModelCalled(Exception):
    """Ends a loss when it calls the model."""


def first_call(model: nn.Module, batch: Any, loss: Loss) -> ModelCall:
    """Returns the arguments of the loss's first call of the model; the model does not run.

    So the batch needs no labels, if the loss only uses them after that call.
    """
    calls: list[ModelCall] = []

    def stop(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        calls.append(model_call(model, arguments, keywords))
        raise _ModelCalled

    hook = model.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        loss(model, batch)
    except _ModelCalled:
        return calls[0]
    except Exception as error:
        raise InputError(
            f"the loss fails before it calls the model ({type(error).__name__}: {error}): give the batch "
            "as in training, with None in place of the labels."
        ) from error
    finally:
        hook.remove()
    raise InputError("the loss never calls the model itself, so there is no output to predict.")


def model_call(model: nn.Module, arguments: Any, keywords: dict[str, Any]) -> ModelCall:
    """Returns a call with these arguments."""
    names = argument_names(model, len(arguments))
    return ModelCall({**dict(zip(names, arguments, strict=True)), **keywords}, len(arguments))
