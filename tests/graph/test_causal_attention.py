"""Causal attention of any range of queries: equal to attention with the mask, in one compiled graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from calls import Call, T
from test_ops import build
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.ops import make_kernel, work
from raddle.graph.ops.causal_attention import causal_attention

# (first query, end of the queries, all keys)
RANGES = [(0, 6, 6), (0, 3, 6), (2, 5, 6), (5, 6, 6), (1, 6, 4), (3, 6, 4), (5, 6, 4), (0, 6, 4)]


def example(first: int, last: int, keys: int) -> tuple[list[Tensor], Tensor]:
    """Queries first:last with the keys that they read, which need gradients; the mask of these."""
    generator = torch.Generator().manual_seed(0)
    keys = min(last, keys)
    shapes = [(2, 3, last - first, 4), (2, 3, keys, 4), (2, 3, keys, 5)]
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    mask = torch.ones(last - first, keys, dtype=torch.bool).tril(first)
    return [t.requires_grad_() for t in tensors], mask


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("first", "last", "keys"), RANGES)
def test_equals_attention_with_the_mask(first: int, last: int, keys: int, compiled: bool) -> None:
    tensors, mask = example(first, last, keys)
    attend = causal_attention(first, last, tensors[1].shape[-2], 0.3, 0.0)
    if compiled:
        torch.compiler.reset()
        attend = torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=False)
    result = attend(*tensors)
    expected = F.scaled_dot_product_attention(*tensors, mask, scale=0.3)
    torch.testing.assert_close(result, expected)
    weights = torch.randn_like(expected)
    gradients, expected_gradients = (
        torch.autograd.grad((y * weights).sum(), tensors) for y in (result, expected)
    )
    torch.testing.assert_close(gradients, expected_gradients)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("first", "last", "keys"), RANGES)
def test_autocast_decides_the_dtype(first: int, last: int, keys: int, compiled: bool) -> None:
    """In mixed precision, queries may be float32 and values bfloat16: all ranges give bfloat16."""
    tensors, mask = example(first, last, keys)
    q, k, v = (t.detach().float() for t in tensors)
    attend = causal_attention(first, last, k.shape[-2], 0.3, 0.0)
    if compiled:
        torch.compiler.reset()
        attend = torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = attend(q, k, v.bfloat16())
    expected = F.scaled_dot_product_attention(q, k, v, mask, scale=0.3)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), expected, rtol=0.02, atol=0.02)


def test_a_tile_neither_reads_nor_counts_later_keys() -> None:
    shapes = [(2, 1, 8, 4)] * 3
    call = Call(
        torch.ops.aten.scaled_dot_product_attention.default, (*map(T, shapes), None, 0.0, True)
    )
    (op,) = build(call, 0)[0].ops
    assert op.space.dims[2].size == 8  # the queries
    full = op.space.full
    early, late = (
        Box((*full.lo[:2], first, *full.lo[3:]), (*full.hi[:2], last, *full.hi[3:]))
        for first, last in ((0, 2), (2, 8))
    )
    keys = Box((0, 0, 0, 0), (2, 1, 2, 4))
    assert op.space.regions(early)[1] == op.space.regions(early)[2] == keys
    assert [work(op, box).flops for box in (early, late)] == [
        2 * 2 * pairs * (4 + 4) for pairs in (1 + 2, 3 + 4 + 5 + 6 + 7 + 8)
    ]
    q, k, v = (torch.randn(s) for s in shapes)
    result = make_kernel(op, late)(q[:, :, 2:], k, v)[0]
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, :, 2:]
    torch.testing.assert_close(result, expected)
