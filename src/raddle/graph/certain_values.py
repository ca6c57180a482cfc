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
# The code of torch and of raddle, and code without a file, is not the user's. With a separator at the end:
# torchvision is no part of torch.
LIBRARIES = (
    os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep, "<",
)  # fmt: skip
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
        # Results of torch.arange, and their elements
        self.constants: dict[int, tuple[Tensor, list[int] | int]] = {}

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
        if func is Tensor.item and first in self.constants:
            return self.constants[first][1]
        result = func(*args, **(kwargs or {}))
        if func is Tensor.unbind and first in self.constants:  # a part of `tolist`
            _, numbers = self.constants.pop(first)
            assert isinstance(numbers, list)
            for element, number in zip(result, numbers, strict=True):
                self.constants[id(element)] = element, number
        elif result is None or isinstance(result, (Tensor, list, tuple)):
            # The call may have written to a constant, or made a view of it. Calls that ask for its shape
            # or type return something else.
            for argument in (*args, *(kwargs or {}).values()):
                self.constants.pop(id(argument), None)
        if func is torch.rand:
            self.uniform[id(result)] = result
        elif func is torch.arange and all(type(a) is int for a in args) and not kwargs:
            self.constants[id(result)] = result, list(range(*args))
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
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(LIBRARIES):
            return f" (at {frame.filename}:{frame.lineno} in {frame.name}: {frame.line})"
    return ""
