"""Operators that read at positions given by a tensor: embedding, index_select, gather, indexing, picking.

    embedding   y[n.. c] += w[v c], i[n..]         a part of v gives zeros for the other indices
    pick        y[n s..] += x[n c s..], i[n s..]   the element of the target class
    index       y[a.. j.. b..] = x[a.. V b..], i[j..]

`n..` stands for any number of dimensions; i is the tensor of positions.
The positions are known only at run time, so the indexed dimension is read whole (V) or, if it is reduced
(v, c), as far as it is in the box.

As in every file of ops/: `_x_notation` writes the index notation of an operator (graph/space.py) from its
signature; `_x_kernel(tile)` returns the function that computes one tile, which is a box of the operator on
a device; `_translate_x` turns an ATen call into operators of the builder `b`. `A` is torch.ops.aten.
`raise NotSplittable` makes the call an opaque operator, which is never split.
`declare` adds an operator kind with traits (traits.py), `b.emit` adds an operator to the graph; its
argument `suffix` is the last part of the operator's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raddle.graph.builder import Builder, NotSplittable, aten
from raddle.graph.graph import Value
from raddle.graph.letters import unique
from raddle.graph.operator_kind import Kernel, OperatorTile, Signature, declare
from raddle.graph.ops.pointwise import broadcast_access, broadcast_letters, broadcast_shape
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten


# -- embedding: the vocabulary is a reduced dimension ----------------------------------


def _embedding_notation(sig: Signature) -> str:
    leading = " ".join(unique(sig.letters[1], "cv"))
    return f"y[{leading} c] += w[v c], i[{leading}]"


def _embedding_kernel(tile: OperatorTile) -> Kernel:
    # The tile has the part lo to hi of the vocabulary. The embedding of the token padding_idx gets no
    # gradient; local_padding is its position in this part.
    (lo, hi), padding = tile.range("v"), tile.attrs["padding_idx"]
    local_padding = padding - lo if padding is not None and lo <= padding < hi else None
    if not tile.is_partial:
        return lambda w, i: F.embedding(i, w, local_padding)

    def run(w: Tensor, i: Tensor) -> Tensor:
        in_range = (i >= lo) & (i < hi)
        y = F.embedding((i - lo).clamp(0, hi - lo - 1), w, local_padding)
        return y.masked_fill(~in_range.unsqueeze(-1), 0)

    return run


declare(
    "embedding",
    _embedding_notation,
    _embedding_kernel,
    Traits(SavedTensors.INDICES),
    flops_per_point=0,
)


@aten("embedding")
def _translate_embedding(
    b: Builder,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale: bool = False,
    sparse: bool = False,
) -> Any:
    if scale or sparse:
        raise NotSplittable
    attrs = {"padding_idx": padding_idx if padding_idx >= 0 else None}
    shape = (*indices.shape, weight.shape[1])
    return b.emit("embedding", [weight, indices], [(shape, weight.dtype)], attrs)


# -- pick: x[n, target[n]]; a target outside of the classes (ignore_index) gives 0 -----


def _pick_notation(sig: Signature) -> str:
    if len(sig.shapes[0]) == 1 and len(sig.shapes[1]) != 0:  # x has one weight for each class
        leading = " ".join(unique(sig.letters[1], "c"))
        return f"y[{leading}] += x[c], i[{leading}]"
    letters = unique(sig.letters[0])
    class_dim = sig.attrs["dim"]
    kept = " ".join(a for d, a in enumerate(letters) if d != class_dim)
    return f"y[{kept}] += x[{' '.join(letters)}], i[{kept}]"


def _pick_kernel(tile: OperatorTile) -> Kernel:
    # is_class_table: x has one number per class and no other dimension, as the weights of classes
    class_dim, is_class_table = tile.attrs["dim"], len(tile.op.space.operands[0].indices) == 1
    region = tile.region(0)
    assert region is not None
    lo, hi = region.lo[class_dim], region.hi[class_dim]

    def run(x: Tensor, i: Tensor) -> Tensor:
        in_range = (i >= lo) & (i < hi)
        local = (i - lo).clamp(0, hi - lo - 1)
        y = (
            x[local]
            if is_class_table
            else x.gather(class_dim, local.unsqueeze(class_dim)).squeeze(class_dim)
        )
        return y.masked_fill(~in_range, 0)

    return run


declare("pick", _pick_notation, _pick_kernel, Traits(SavedTensors.INDICES), flops_per_point=0)


def pick(b: Builder, x: Value, target: Value, dim: int, suffix: str) -> Any:
    """Adds an operator that reads, for each target, the element of that class along `dim`."""
    attrs = {"dim": dim}
    return b.emit("pick", [x, target], [(target.shape, x.dtype)], attrs, suffix=suffix)


# -- gather, index_select, x[i] --------------------------------------------------------


def _gather_notation(sig: Signature) -> str:
    letters, dim = unique(sig.letters[0]), sig.attrs["dim"]
    indices = [":" if d == dim else a for d, a in enumerate(letters)]
    y = " ".join(letters)
    return f"y[{y}] = x[{' '.join(indices)}], i[{y}]"


declare(
    "gather",
    _gather_notation,
    lambda tile: lambda x, i: x.gather(tile.attrs["dim"], i),
    Traits(SavedTensors.INDICES),
    flops_per_point=0,
)


@aten("gather")
def _translate_gather(
    b: Builder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False
) -> Any:
    if not x.shape:
        raise NotSplittable
    attrs = {"dim": dim % len(x.shape)}
    return b.emit("gather", [x, index], [(index.shape, x.dtype)], attrs)


def _index_notation(sig: Signature) -> str:
    """Returns the notation of x[i0, i1]: the (broadcast) dimensions of i0 and i1 replace two of x."""
    dim, count = sig.attrs["dim"], len(sig.shapes) - 1
    out = sig.outputs[0]
    rank = len(out) - len(sig.shapes[0]) + count  # of the broadcast index tensors
    sizes = out[dim : dim + rank]
    # middle: the letters of the broadcast index tensors
    middle = broadcast_letters(sig.shapes[1:], sig.letters[1:], sizes)
    letters = unique([*sig.letters[0][:dim], *middle, *sig.letters[0][dim + count :]])
    middle = letters[dim : dim + rank]
    indices = [*letters[:dim], *[":"] * count, *letters[dim + rank :]]
    accesses = [f"i{j}[{broadcast_access(s, middle, sizes)}]" for j, s in enumerate(sig.shapes[1:])]
    return f"y[{' '.join(letters)}] = x[{' '.join(indices)}], {', '.join(accesses)}"


def _index_kernel(tile: OperatorTile) -> Kernel:
    leading = (slice(None),) * tile.attrs["dim"]  # the dimensions before the first indexed one
    return lambda x, *indices: x[(*leading, *indices)]


declare("index", _index_notation, _index_kernel, Traits(SavedTensors.INDICES), flops_per_point=0)


@aten("index", "_unsafe_index")
def index(b: Builder, x: Value, indices: Sequence[Value | None]) -> Any:
    """Adds x[indices]; None stands for a dimension that is not indexed."""
    indexed_dims = [d for d, i in enumerate(indices) if i is not None]
    chosen = [i for i in indices if i is not None]
    if indexed_dims != list(range(indexed_dims[0], indexed_dims[-1] + 1)) or any(
        i.dtype == torch.bool for i in chosen
    ):
        raise NotSplittable
    middle = broadcast_shape(*(i.shape for i in chosen))
    shape = (*x.shape[: indexed_dims[0]], *middle, *x.shape[indexed_dims[-1] + 1 :])
    return b.emit("index", [x, *chosen], [(shape, x.dtype)], {"dim": indexed_dims[0]})


@aten("index_select")
def _translate_index_select(b: Builder, x: Value, dim: int, indices: Value) -> Any:
    if not x.shape:
        raise NotSplittable
    return index(b, x, [*[None] * (dim % len(x.shape)), indices])


@aten("one_hot")
def _translate_one_hot(b: Builder, x: Value, classes: int = -1) -> Any:
    if classes < 0:
        raise NotSplittable
    all_classes = b.call(A.arange.default, classes)
    same = b.call(A.eq.Tensor, b.call(A.unsqueeze.default, x, -1), all_classes)
    return b.call(A.to.dtype, same, torch.int64)
