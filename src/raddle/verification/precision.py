"""Computing a module in double precision, whatever types its code asks for.

A module that calls `.float()` or passes `dtype=torch.bfloat16` inside its forward rounds there, also after
`module.double()`. While `Raising` is active such requests give float64 (complex128): nothing is rounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

WIDE = torch.float64

# Methods that name a type instead of taking one, by what they give in double precision.
_METHODS: dict[Any, Any] = {
    **dict.fromkeys((Tensor.float, Tensor.half, Tensor.bfloat16), Tensor.double),
    **{getattr(Tensor, name): getattr(Tensor, "cdouble") for name in ("cfloat", "chalf")},  # noqa: B009
}
_OLD_NAMES = re.compile(r"(?<=\.)(Float|Half|BFloat16)Tensor$")  # as in x.type("torch.FloatTensor")


def raised(dtype: torch.dtype) -> torch.dtype:
    """The double-precision type of a floating or complex type; other types are returned as they are."""
    if dtype.is_complex:
        return torch.complex128
    return WIDE if dtype.is_floating_point else dtype


def raise_all(value: Any) -> Any:
    """Types and tensors anywhere in arguments or attributes, in double precision."""
    if isinstance(value, torch.dtype):
        return raised(value)
    if isinstance(value, Tensor):
        wide = raised(value.dtype)
        return value if value.dtype == wide else value.to(wide)
    if isinstance(value, Mapping):
        return {key: raise_all(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)([raise_all(v) for v in value])
    return value


class Raising(TorchFunctionMode):
    """While it is active, torch's functions get double-precision tensors and types."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = raise_all(tuple(args)), raise_all(kwargs or {})
        if func is Tensor.type:
            args = tuple(_old_type(a) for a in args)
        return _METHODS.get(func, func)(*args, **kwargs)


def _old_type(name: Any) -> Any:
    """`torch.FloatTensor`, or its name, as torch.DoubleTensor's name."""
    text = f"{name.__module__}.{name.__name__}" if isinstance(name, type) else name
    return _OLD_NAMES.sub("DoubleTensor", text) if isinstance(text, str) else name


def raise_module(module: nn.Module) -> None:
    """Parameters and buffers in double precision; `Module.to` would drop imaginary parts."""
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = raise_all(tensor.data)
