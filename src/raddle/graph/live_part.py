"""Leaves out of a captured graph what neither its results nor its updated buffers depend on."""

from __future__ import annotations

import dataclasses

from raddle.graph.builder import Builder
from raddle.graph.graph import FusedCall, Op, Value


def live_part(
    b: Builder, wanted: set[str]
) -> tuple[dict[str, Value], tuple[Op, ...], tuple[FusedCall, ...]]:
    """Returns the values, operators and fused calls that the wanted values depend on, without dead code."""
    needed, ops = set(wanted), []
    for op in reversed(b.ops):
        if any(o in needed for o in op.outputs):
            needed.update(op.inputs)
            ops.append(op)
    live_names = {op.name for op in ops}
    computed = {o for op in ops for o in op.outputs}
    # A constant that no live operator reads is left out too, such as the empty cache of a decoder.
    values = {
        n: v
        for n, v in b.values.items()
        if n in computed or v.role not in ("op", "constant") or n in needed
    }
    fused = []
    for f in b.fused_calls:
        outputs = tuple(o if o in computed else None for o in f.outputs)
        if any(outputs):
            names = tuple(name for name in f.ops if name in live_names)
            fused.append(dataclasses.replace(f, ops=names, outputs=outputs))
    return values, tuple(reversed(ops)), tuple(fused)
