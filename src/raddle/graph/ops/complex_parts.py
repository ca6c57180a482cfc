"""Complex numbers from pairs of real numbers, and back, as rotary embeddings use them.

    view_as_complex   z[a..] = x[a.. :]       view_as_real   x[a.. R] = z[a..]

As in every file of ops/: index notation is explained in graph/space.py; `_translate_x` turns an ATen call
into operators of the builder `b`. `A` is torch.ops.aten. `emit_slicewise` is explained in slicewise.py.
"""

from __future__ import annotations

from typing import Any

import torch

from raddle.graph.builder import Builder, aten
from raddle.graph.graph import Value
from raddle.graph.letters import unique, unused_letter
from raddle.graph.ops.slicewise import access, emit_slicewise

A = torch.ops.aten


@aten("view_as_complex")
def _translate_view_as_complex(b: Builder, x: Value) -> Any:
    letters = unique(x.letters[:-1])
    notation = f"{access('z', letters)} = {access('x', [*letters, ':'])}"
    return emit_slicewise(b, A.view_as_complex.default, (x,), notation, flops_per_point=0)


@aten("view_as_real")
def _translate_view_as_real(b: Builder, z: Value) -> Any:
    letters = unique(z.letters)
    part = unused_letter(letters).upper()
    notation = f"{access('x', [*letters, part])} = {access('z', letters)}"
    return emit_slicewise(b, A.view_as_real.default, (z,), notation, flops_per_point=0)
