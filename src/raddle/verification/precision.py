"""Makes a module compute in double precision, even if its code casts to other types.

`raddle verify` compares two trainings in float64, so that rounding does not hide errors. A module that
calls `.float()` or passes `dtype=torch.bfloat16` inside its forward rounds there, even after
`module.double()`. While `DoublePrecisionMode` is active, such casts give float64 (or complex128) instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DOUBLE = torch.float64

# Methods whose name is a type, and the methods that are called instead.
_METHODS: dict[Any, Any] = {
    **dict.fromkeys((Tensor.float, Tensor.half, Tensor.bfloat16), Tensor.double),
    **{getattr(Tensor, name): getattr(Tensor, "cdouble") for name in ("cfloat", "chalf")},  # noqa: B009
}
# Legacy names of types, as in x.type("torch.FloatTensor").
_LEGACY_NAMES = re.compile(r"(?<=\.)(Float|Half|BFloat16)Tensor$")


def double_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for a floating-point type, complex128 for a complex one, and any other type itself."""
    if dtype.is_complex:
        return torch.complex128
    return DOUBLE if dtype.is_floating_point else dtype


def to_double(value: Any) -> Any:
    """Return a value with all its types and tensors in double precision, also those in containers."""
    if isinstance(value, torch.dtype):
        return double_dtype(value)
    if isinstance(value, Tensor):
        dtype = double_dtype(value.dtype)
        return value if value.dtype == dtype else value.to(dtype)
    if isinstance(value, Mapping):
        return {key: to_double(v) for key, v in value.items()}
    # A NamedTuple (it has _fields) cannot be made from a list and is left as it is.
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)([to_double(v) for v in value])
    return value


class DoublePrecisionMode(TorchFunctionMode):
    """A mode in which all torch functions are called with double-precision tensors and types."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = to_double(tuple(args)), to_double(kwargs or {})
        if func is Tensor.type:
            args = tuple(_double_tensor_name(a) for a in args)
        if getattr(func, "__name__", "") == "_grouped_mm":  # F.grouped_mm calls it
            func = _grouped_mm
        return _METHODS.get(func, func)(*args, **kwargs)


def _grouped_mm(x: Tensor, weight: Tensor, *, offs: Tensor, **_: Any) -> Tensor:
    """Return F.grouped_mm, for which torch has no kernel in float64."""
    ends = offs.tolist()
    parts = [x[a:b] @ w for a, b, w in zip([0, *ends], ends, weight, strict=False)]
    return torch.cat([*parts, x.new_zeros(len(x) - ends[-1], weight.shape[-1])])


def _double_tensor_name(name: Any) -> Any:
    """Return the name of torch.DoubleTensor for torch.FloatTensor, HalfTensor or BFloat16Tensor.

    name: the class or its name; anything else is returned unchanged.
    """
    text = f"{name.__module__}.{name.__name__}" if isinstance(name, type) else name
    return _LEGACY_NAMES.sub("DoubleTensor", text) if isinstance(text, str) else name


def module_to_double(module: nn.Module) -> None:
    """Convert parameters and buffers to double precision, in place.

    `Module.to(torch.float64)` would drop the imaginary parts of complex tensors.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = to_double(tensor.data)
