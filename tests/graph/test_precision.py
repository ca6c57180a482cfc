"""Half precision: what torch computes in float32 before rounding is float32 here too, for any split.

Every tensor, also a partial result, has the type that the graph declares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from calls import CALLS, Call, P, T
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_ops import build, map_arguments, partition, run, run_torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op
from raddle.graph.interpret import interpret

A = torch.ops.aten
HALF = [torch.float16, torch.bfloat16]
# The running mean and variance of a batch norm.
RUNNING = T((9,), role="buffer"), T((9,), role="buffer", positive=True)
# A quarter of the usual number of examples.
FEWER = max(5, settings.default.max_examples // 4)


def in_dtype(call: Call, dtype: torch.dtype, state: torch.dtype | None = None) -> Call:
    """The same call on inputs of another type; state: the type of parameters and buffers, if different."""

    def cast(t: T) -> T:
        wanted = dtype if t.role == "input" else state or dtype
        return t._replace(dtype=wanted) if t.dtype == torch.float64 else t

    return Call(call.target, *map_arguments((call.args, call.kwargs), T, cast))


def compare(call: Call, seed: int, cut: Any) -> None:
    """Compares a call with torch and with float64 results; cut(op): the boxes of an operator."""
    try:
        graph, tensors, theirs = build(call, seed)
    except RuntimeError as error:
        # Skip calls that torch does not have in half precision.
        assume(
            not re.search("not (implemented|supported)|[uU]nsupported|only supported", str(error))
        )
        raise
    if any("stream" in op.attrs for op in graph.ops):
        return  # raddle's mask differs from torch's
    precise = {k: v.double() if v.is_floating_point() else v for k, v in tensors.items()}
    exact = run_torch(call, precise, graph.updates)
    tiles = {op.name: cut(op) for op in graph.ops[:20]}
    _check_declared_types(graph, tensors, tiles)
    names = [*graph.outputs, *graph.updates.values()]
    for used_tiles, fuse in [({}, True), ({}, False), (tiles, False)]:
        results = interpret(graph, tensors, tiles=used_tiles, fuse=fuse)
        for name, a, b, c in zip(names, map(results.get, names), theirs, exact, strict=False):
            assert a.dtype == b.dtype == graph.values[name].dtype
            # Partial results of products have the type of the result and may be larger than their sum.
            scale = 4.0 if any(op.space.is_product for op in graph.ops) else 0.0
            _check_as_close_as_torch(a, b, c, scale)


def _check_declared_types(
    graph: Graph, tensors: Mapping[str, Tensor], tiles: Mapping[str, Sequence[Box]]
) -> None:
    values = {**tensors}
    for op in graph.ops:
        operands = [values[i] for i in op.inputs]
        results = run(op, op.space.full, operands)
        assert tuple(t.dtype for t in results) == op.dtypes, op.notation
        for box in tiles.get(op.name, []):
            assert {t.dtype for t in run(op, box, operands)} <= set(op.dtypes), op.notation
        values.update(zip(op.outputs, results, strict=True))


def _check_as_close_as_torch(ours: Tensor, theirs: Tensor, exact: Tensor, scale: float) -> None:
    """The error is a few roundings of the result, or not much larger than torch's error."""
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    if same.all():
        return
    assert ours.is_floating_point()
    allowed = 1.5 * torch.finfo(ours.dtype).eps * (exact.abs().max() + scale)
    ours, theirs, exact = (t[~same].double() for t in (ours, theirs, exact))
    off = (theirs - exact).abs().nan_to_num(0, 0, 0)  # torch may overflow where raddle does not
    assert (ours - exact).abs().max() <= allowed + 2 * off.max()


# torch has no ctc_loss in half precision, and few functions of complex numbers.
@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"ctc", "complex_parts", "fourier"}))
def test_half_precision(name: str) -> None:
    @settings(max_examples=FEWER)
    @given(st.data(), st.integers(0, 99), st.sampled_from(HALF))
    def check(data: st.DataObject, seed: int, dtype: torch.dtype) -> None:
        call = in_dtype(data.draw(CALLS[name]), dtype)
        compare(call, seed, lambda op: data.draw(partition(op)))

    check()


@pytest.mark.parametrize("name", ["batch_norm", "group_norm", "layer_norm"])
def test_statistics_and_weights_of_float32(name: str) -> None:
    @given(st.data(), st.integers(0, 99), st.sampled_from(HALF))
    def check(data: st.DataObject, seed: int, dtype: torch.dtype) -> None:
        call = in_dtype(data.draw(CALLS[name]), dtype, torch.float32)
        compare(call, seed, lambda op: data.draw(partition(op)))

    check()


# -- sums of many numbers, which no type of 16 bits can represent ----------------------


def halves(op: Op) -> list[Box]:
    """The boxes of an iteration space that is cut in the middle of every long dimension."""
    boxes = [op.space.full]
    for d, dim in enumerate(op.space.dims):
        if dim.size > 8 and not dim.unsplittable:
            at = dim.size // 2
            boxes = [
                part
                for lo, hi in boxes
                for part in (
                    Box(lo, (*hi[:d], at, *hi[d + 1 :])),
                    Box((*lo[:d], at, *lo[d + 1 :]), hi),
                )
            ]
    return boxes


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "call",
    [
        Call(A.mean.default, (T((20000, 32), positive=True),)),
        Call(A.mean.dim, (T((600000, 1), positive=True), [0], True)),
        Call(A.mse_loss.default, (T((4096, 32)), T((4096, 32)), 1)),
        Call(A.kl_div.default, (T((4096, 32)), T((4096, 32), positive=True), 1)),
        Call(A.cross_entropy_loss.default, (T((70000, 3)), T((70000,), below=3))),
        Call(A.cross_entropy_loss.default, (T((9, 5000)), T((9,), below=5000), None, 2, -100, 0.1)),
        Call(A.nll_loss_nd.default, (T((70000, 3)), T((70000,), below=3))),
        Call(A.softmax.int, (T((64, 5000)), 1)),
        Call(A.log_softmax.int, (T((64, 5000)), 1)),
        Call(A.logsumexp.default, (T((64, 5000)), [0, 1])),
        Call(A.var.correction, (T((64, 5000)), [0, 1]), {"correction": 1}),
        Call(A.std.correction, (T((64, 5000)), [1]), {"correction": 0}),
        Call(A.batch_norm.default, (T((300, 9, 30)), P(9), P(9), *RUNNING, True, 0.1, 1e-5, False)),
        Call(A.layer_norm.default, (T((9, 5000)), [5000], P(5000), P(5000))),
        Call(A.rms_norm.default, (T((9, 5000)), [5000], P(5000))),
        Call(A.group_norm.default, (T((9, 20, 300)), 2, P(20), P(20))),
    ],
    ids=lambda call: str(call.target),
)
def test_long_sums(call: Call, dtype: torch.dtype) -> None:
    compare(in_dtype(call, dtype), 0, halves)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_gradients_of_softmax(dtype: torch.dtype, shift: float) -> None:
    """The log-sum-exp of numbers around 100 has no digits left in bfloat16."""
    graph, _, _ = build(Call(A.softmax.int, (T((16, 64), dtype=dtype), 1)), 0)
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)).to(dtype) + shift
    seed = torch.randn(16, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    exact = x.double().requires_grad_()
    (exact.softmax(1) * seed).sum().backward()
    for tiles in ({}, {op.name: halves(op) for op in graph.ops}):
        ours = x.clone().requires_grad_()
        result = interpret(graph, {"in0": ours}, tiles=tiles, fuse=False)
        (result[graph.outputs[0]] * seed).sum().backward()
        error = (ours.grad.double() - exact.grad).abs().max()
        assert error <= 2 * torch.finfo(dtype).eps * exact.grad.abs().max()
