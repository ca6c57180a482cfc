"""Distances and similarities of rows, as vector quantisation and contrastive losses compute them.

    cdist   y[a.. m r] = x[a.. m :], w[a.. r :]       between all pairs of rows

The cosine similarity is translated into norms, quotients and a sum.

As in every file of ops/: index notation is explained in graph/space.py; `_translate_x` turns an ATen call
into operators of the builder `b`. `A` is torch.ops.aten. `emit_slicewise` is explained in slicewise.py.
"""

from __future__ import annotations

from typing import Any

import torch

from raddle.graph.builder import Builder, aten
from raddle.graph.graph import Value
from raddle.graph.letters import unique
from raddle.graph.opaque_flops import opaque_flops_per_point
from raddle.graph.ops.loss import MEAN, reduce_loss
from raddle.graph.ops.pointwise import broadcast_access, broadcast_letters, broadcast_shape
from raddle.graph.ops.shape import expand
from raddle.graph.ops.slicewise import access, emit_slicewise

A = torch.ops.aten
# Values of cdist's argument compute_mode: by a matrix product if there are more than 25 rows, always, never
IF_MANY_ROWS, BY_PRODUCT, DIRECTLY = 0, 1, 2
MANY_ROWS = 25


@aten("cdist")
def _translate_cdist(
    b: Builder, x: Value, w: Value, p: float = 2.0, compute_mode: int | None = None
) -> Any:
    batch = broadcast_shape(x.shape[:-2], w.shape[:-2])
    (m,) = unique(x.letters[-2])
    (r,) = unique(w.letters[-2], m)
    letters = broadcast_letters(
        [x.shape[:-2], w.shape[:-2]], [x.letters[:-2], w.letters[:-2]], batch
    )
    a = unique(letters, [m, r])
    left = [broadcast_access(v.shape[:-2], a, batch) for v in (x, w)]
    accesses = [access("x", [left[0], m, ":"]), access("w", [left[1], r, ":"])]
    notation = f"{access('y', [*a, m, r])} = {', '.join(accesses)}"
    # torch chooses by the number of rows; a tile, which has fewer, must compute in the same way.
    by_product = x.shape[-2] > MANY_ROWS or w.shape[-2] > MANY_ROWS
    mode = compute_mode or (BY_PRODUCT if by_product else DIRECTLY)
    flops = opaque_flops_per_point("cdist", [x])
    return emit_slicewise(b, A.cdist.default, (x, w, p, mode), notation, flops_per_point=flops)


@aten("cosine_similarity")
def _translate_cosine_similarity(
    b: Builder, x: Value, w: Value, dim: int = 1, eps: float = 1e-8
) -> Any:
    shape = broadcast_shape(x.shape, w.shape)
    quotients = []
    for v in (expand(b, x, shape), expand(b, w, shape)):
        norm = b.call(A.linalg_vector_norm.default, v, 2, [dim], True)
        # torch raises a small norm to eps without a change of its gradient.
        added = b.call(A.sub.Tensor, b.call(A.clamp_min.default, norm, eps), norm)
        norm = b.call(A.add.Tensor, norm, b.call(A.detach.default, added))
        quotients.append(b.call(A.div.Tensor, v, norm))
    return b.call(A.sum.dim_IntList, b.call(A.mul.Tensor, *quotients), [dim])


@aten("cosine_embedding_loss")
def _translate_cosine_embedding(
    b: Builder, x: Value, w: Value, target: Value, margin: float = 0.0, reduction: int = MEAN
) -> Any:
    # both, mags: the products x w, x x and w w, summed over the features
    both, *mags = (
        b.call(A.sum.dim_IntList, b.call(A.mul.Tensor, v, u), [-1])
        for v, u in ((x, w), (x, x), (w, w))
    )
    mags = [b.call(A.add.Scalar, v, 1e-12) for v in mags]  # as torch does
    cosine = b.call(A.div.Tensor, both, b.call(A.sqrt.default, b.call(A.mul.Tensor, *mags)))
    zero = b.call(A.zeros_like.default, cosine)
    near = b.call(A.rsub.Scalar, cosine, 1)
    far = b.call(A.clamp_min.default, b.call(A.sub.Scalar, cosine, margin), 0)
    losses = [
        b.call(A.where.self, b.call(A.eq.Scalar, target, label), part, zero)
        for label, part in ((1, near), (-1, far))
    ]
    return reduce_loss(b, b.call(A.add.Tensor, *losses), reduction)
