"""Operators that are never split: those that nobody declared."""

from __future__ import annotations

from typing import Any

from raddle.graph.builder import fill, resolve
from raddle.graph.kind import Frame, Kernel, Site, declare

_CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _line(f: Frame) -> str:
    letters = iter(_CAPITALS)
    outputs = [" ".join(next(letters) for _ in shape) for shape in f.outputs]
    left = ", ".join(f"y{i}[{o}]" for i, o in enumerate(outputs))
    right = ", ".join(f"x{i}[{' '.join(':' for _ in s)}]" for i, s in enumerate(f.shapes))
    return f"{left} = {right}"


def _kernel(site: Site) -> Kernel:
    target = resolve(site.attrs["call"])
    args, kwargs = site.attrs["args"], site.attrs["kwargs"]
    kept, single = site.attrs["outputs"], site.attrs["single"]
    creates = any(a.name == "device" for a in target._schema.arguments)
    places: dict[str, Any] = {"device": site.device} if creates else {}

    def run(*tensors: Any) -> Any:
        result = target(*fill(args, tensors), **fill(kwargs, tensors), **places)
        return result if single else tuple(result[i] for i in kept)

    return run


declare("opaque", _line, _kernel, cost=0)
