"""Operators that are never split: those that nobody declared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raddle.errors import InputError
from raddle.graph.builder import fill_template, resolve_overload
from raddle.graph.dtypes import carries_gradient, resolve_conj_and_neg
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.traits import SavedTensors, Traits

_CAPITALS = "ABCDEFGHIJKLMOPQRSTUVWXYZ"  # without N: what comes out need not hold samples


def _letters(shape: Sequence[int], sizes: dict[str, int]) -> list[str]:
    """Letters of an output; all dimensions are whole, so outputs may share letters of equal size."""
    chosen: list[str] = []
    for size in shape:
        free = (a for a in _CAPITALS if a not in chosen and sizes.get(a, size) == size)
        letter = next(free, None)
        if letter is None:
            raise InputError(
                f"a call returns tensors with more than {len(_CAPITALS)} different dimensions, "
                "which cannot be captured: make it several calls."
            )
        sizes[letter] = size
        chosen.append(letter)
    return chosen


def _line(f: Signature) -> str:
    sizes: dict[str, int] = {}
    outputs = [" ".join(_letters(shape, sizes)) for shape in f.outputs]
    left = ", ".join(f"y{i}[{o}]" for i, o in enumerate(outputs))
    right = ", ".join(f"x{i}[{' '.join(':' for _ in s)}]" for i, s in enumerate(f.shapes))
    return f"{left} = {right}"


def _kernel(site: OperatorTile) -> Kernel:
    target = resolve_overload(site.attrs["call"])
    args, kwargs = site.attrs["args"], site.attrs["kwargs"]
    kept, single = site.attrs["outputs"], site.attrs["single"]
    creates = any(a.name == "device" for a in target._schema.arguments)
    lazy = any(carries_gradient(dtype) for dtype in site.op.dtypes)
    places: dict[str, Any] = {"device": site.device} if creates else {}

    def run(*tensors: Any) -> Any:
        result = target(*fill_template(args, tensors), **fill_template(kwargs, tensors), **places)
        results = (result,) if single else tuple(result[i] for i in kept)
        return tuple(resolve_conj_and_neg(t) for t in results) if lazy else results

    return run


declare("opaque", _line, _kernel, Traits(SavedTensors.BOTH), flops_per_point=0)
