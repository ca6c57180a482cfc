"""Composite calls: their operators have the gradients of torch, also where a norm is zero."""

from __future__ import annotations

import torch
from calls import CALLS, Call
from hypothesis import given
from hypothesis import strategies as st
from test_ops import build, close, map_arguments

from raddle.graph.interpret import interpret


@given(CALLS["composites"], st.integers(0, 99), st.booleans())
def test_gradients(call: Call, seed: int, has_zeros: bool) -> None:
    graph, tensors, _ = build(call, seed)
    assert not graph.opaque_ops
    for tensor in tensors.values():
        if tensor.is_floating_point():
            if has_zeros:
                tensor[0] = 0
            tensor.requires_grad_()
    given_tensors = iter(tensors.values())
    args, kwargs = map_arguments(
        (call.args, call.kwargs), type(call.args[0]), lambda _: next(given_tensors)
    )
    expected = call.target(*args, **kwargs)
    (name,) = graph.outputs
    actual = interpret(graph, tensors)[name]
    close(actual, expected)
    trained = [t for t in tensors.values() if t.requires_grad]
    weights = torch.linspace(0.5, 1.5, expected.numel(), dtype=torch.float64).view(expected.shape)
    ours, theirs = (
        torch.autograd.grad((y * weights).sum(), trained, materialize_grads=True, allow_unused=True)
        for y in (actual, expected)
    )
    for a, b in zip(ours, theirs, strict=True):
        close(a, b)
