"""The stored arguments of an ATen call, in which numbers of operands stand in place of tensors.

>>> double = call_with_operands(lambda x, alpha: alpha * x, (OperandRef(0),), {"alpha": 2})
>>> double([21])
42
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


class OperandRef(int):
    """Stands for an operand in the stored arguments of a call: its position among the operands."""

    def __repr__(self) -> str:
        return f"#{int(self)}"


def call_with_operands(
    target: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
) -> Callable[[Sequence[Any]], Any]:
    """Returns a function of tensors: it puts them in place of the OperandRefs, and calls the target."""
    get_args, get_kwargs = _filler(tuple(args)), _filler(dict(kwargs))
    return lambda tensors: target(*get_args(tensors), **get_kwargs(tensors))


def _filler(template: Any) -> Callable[[Sequence[Any]], Any]:
    """Returns a function from tensors to a copy of the template in which they replace the OperandRefs.

    The template is looked through once, here: torch.compile should find only what depends on tensors.
    """
    if isinstance(template, OperandRef):
        number = int(template)
        return lambda tensors: tensors[number]
    if not _has_operands(template):
        return lambda tensors: template
    if isinstance(template, dict):
        fillers_by_key = {key: _filler(t) for key, t in template.items()}
        return lambda tensors: {key: fill(tensors) for key, fill in fillers_by_key.items()}
    fillers, is_list = [_filler(t) for t in template], isinstance(template, list)

    def fill_all(tensors: Sequence[Any]) -> Any:
        filled = [fill(tensors) for fill in fillers]
        return filled if is_list else tuple(filled)

    return fill_all


def _has_operands(template: Any) -> bool:
    if isinstance(template, (list, tuple)):
        return any(map(_has_operands, template))
    if isinstance(template, dict):
        return any(map(_has_operands, template.values()))
    return isinstance(template, OperandRef)
