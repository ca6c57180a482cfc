"""Answers questions about values of tensors while torch.export runs, where the answer is certain.

torch.export runs a model on tensors without data. So it refuses code that asks for a value of a tensor,
also where the value is the same in every step:

    torch.rand([]) < 0.0                    is always False: LayerDrop that is turned off
    torch.arange(2, x.ndim).tolist()        is a list of constants

Only tensors that nothing was done with in between count, so that no write in place can have changed them.
"""

from __future__ import annotations

import operator
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from raddle.errors import InputError

Compare = Callable[[float, float], bool]
COMPARISONS: dict[Any, Compare] = {
    **dict.fromkeys((torch.lt, Tensor.lt, Tensor.__lt__), operator.lt),
    **dict.fromkeys((torch.le, Tensor.le, Tensor.__le__), operator.le),
    **dict.fromkeys((torch.gt, Tensor.gt, Tensor.__gt__), operator.gt),
    **dict.fromkeys((torch.ge, Tensor.ge, Tensor.__ge__), operator.ge),
}
LARGEST_UNIFORM = 1 - 2**-53  # the largest number that torch.rand gives, in float64


class CertainValues(TorchFunctionMode):
    """A mode that answers `bool(rand < p)` for p = 0 or 1, and `tolist` of an arange.

    Raises InputError where a comparison of random numbers decides which code runs.
    """

    def __init__(self) -> None:
        super().__init__()
        # By id of a tensor: the tensor, which keeps the id unique, and what is certain about it.
        self.uniform: dict[int, Tensor] = {}  # results of torch.rand
        # Results of comparisons with uniform numbers; None: the answer depends on chance.
        self.comparisons: dict[int, tuple[Tensor, bool | None]] = {}
        self.ranges: dict[int, tuple[Tensor, list[Any]]] = {}  # results of torch.arange

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        first = id(args[0]) if args else 0
        if func is Tensor.__bool__ and first in self.comparisons:
            return _certain(self.comparisons[first][1])
        if func is Tensor.tolist and first in self.ranges:
            return list(self.ranges[first][1])
        for argument in (*args, *(kwargs or {}).values()):
            self.ranges.pop(id(argument), None)  # the call may write to it, or make a view of it
        result = func(*args, **(kwargs or {}))
        if func is torch.rand:
            self.uniform[id(result)] = result
        elif func is torch.arange and all(type(a) is int for a in args) and not kwargs:
            self.ranges[id(result)] = result, list(range(*args))
        elif func in COMPARISONS and first in self.uniform and isinstance(args[1], (int, float)):
            lowest, highest = (COMPARISONS[func](u, args[1]) for u in (0.0, LARGEST_UNIFORM))
            self.comparisons[id(result)] = result, lowest if lowest == highest else None
        elif func not in COMPARISONS:
            self.uniform.pop(first, None)
        return result


def _certain(answer: bool | None) -> bool:
    """Returns the answer; raises InputError if it depends on chance."""
    if answer is None:
        raise InputError(
            "the model decides by a random number which layers run, as LayerDrop does"
            f"{_calling_line()}, which cannot be captured: set that probability to 0 "
            "(transformers: model.config.layerdrop = 0)."
        )
    return answer


def _calling_line() -> str:
    """Returns the file and line of the code that asked, or ""."""
    libraries = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith((*libraries, "<")):
            return f" (at {frame.filename}:{frame.lineno} in {frame.name}: {frame.line})"
    return ""
