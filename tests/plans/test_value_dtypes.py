"""Dtypes of values under autocast are those that PyTorch gives on CUDA devices, for every operator kind.

Fake tensors of CUDA devices run through PyTorch's own autocast, without a GPU and without data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from calls import CALLS, Call, T
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from small_models import MODELS, small
from test_ops import build, map_arguments
from test_precision import in_dtype
from torch._subclasses.fake_tensor import FakeTensorMode

from raddle.errors import InputError
from raddle.graph.builder import Builder
from raddle.graph.graph import Graph, Op
from raddle.plans.precision import Precision, read_precision
from raddle.plans.value_dtypes import in_precision

BF16, FP16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
LOW = {"bf16": BF16, "fp16": FP16}
# Calls of cuDNN, which fake tensors cannot make: their results are 16 bits wide.
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
# Capturing a float32 model loses that these follow their input; their results are float32, not narrower.
WIDER = {
    "var", "std", "full_like", "new_zeros", "to", "instance_norm",
    "rand_like", "randn_like", "randint_like", "bernoulli", "uniform", "exponential", "normal_functional",
}  # fmt: skip


@contextmanager
def autocast_on_cuda(low: torch.dtype) -> Iterator[None]:
    """As torch.autocast, which refuses to start without a GPU."""
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", low)
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before)
        torch.clear_autocast_cache()


def torch_dtypes(call: Call, low: torch.dtype) -> list[torch.dtype]:
    """The dtypes of the results that PyTorch gives for a call on a CUDA device, under autocast."""
    with FakeTensorMode(), autocast_on_cuda(low):

        def fake(t: T) -> torch.Tensor:
            dtype = torch.bool if t.boolean else torch.int64 if t.below else t.dtype
            return torch.empty(t.shape, dtype=dtype, device="cuda")

        args, kwargs = map_arguments((call.args, call.kwargs), T, fake)
        # Calls without tensors need no device: only their dtype is asked for.
        result = call.target(*args, **kwargs)
    results = [result] if isinstance(result, torch.Tensor) else list(result)
    return [r.dtype for r in results]


def expected_dtypes(
    call: Call, name: str, operand: torch.dtype, low: torch.dtype
) -> list[torch.dtype]:
    """As `torch_dtypes`; the calls of cuDNN are known. operand: the dtype of the call's inputs."""
    if name in RECURRENT:
        return [low] * 3
    if name == "batch_norm":
        return [operand]
    return torch_dtypes(call, low)


def behind_low_operators(graph: Graph) -> Graph:
    """The graph with an operator before each float32 input, which gives 16 bits under autocast."""
    values, ops = dict(graph.values), list[Op]()
    for name in graph.inputs:
        if values[name].role == "input" and values[name].dtype == F32:
            b = Builder()
            b.emit("rnn_relu_cell", [b.add(values[name])], [(values[name].shape, F32)])
            ops.append(replace(b.ops[0], inputs=(f"{name}_wide",), outputs=(name,)))
            values[f"{name}_wide"] = replace(values[name], name=f"{name}_wide")
            values[name] = replace(values[name], role="op")
    return replace(graph, values=values, ops=(*ops, *graph.ops))


@pytest.mark.parametrize("name", sorted(CALLS))
def test_values_have_the_dtypes_of_autocast(name: str) -> None:
    @settings(deadline=None)
    @given(st.data(), st.sampled_from(sorted(LOW)))
    def check(data: st.DataObject, kind: str) -> None:
        drawn = in_dtype(data.draw(CALLS[name]), F32)
        one, low = data.draw(st.sampled_from([F32, LOW[kind]])), LOW[kind]

        def narrow(t: T) -> T:
            return t._replace(dtype=one) if t.dtype == F32 and t.role == "input" else t

        call = Call(drawn.target, *map_arguments((drawn.args, drawn.kwargs), T, narrow))
        captured = build(drawn, 0)[0]
        # A mean of one element is a sum of one element; no dtype depends on it but in this test.
        ops = [op for op in captured.ops if op.kind == "sum"]
        assume("mean" not in str(drawn.target) or all(op.attrs["scale"] != 1 for op in ops))
        captured = captured if one == F32 else behind_low_operators(captured)
        call_name = drawn.target._schema.name.split("::")[1]
        try:
            expected = expected_dtypes(call, call_name, one, low)
        except RuntimeError as error:  # PyTorch has no such call in 16 bits
            assume(
                "not linked with support" not in str(error)
            )  # nor any on CUDA devices, in this build
            with pytest.raises(InputError, match="use precision float32 or tf32"):
                in_precision(captured, read_precision(kind))
            return
        graph = in_precision(captured, read_precision(kind))
        ours = [graph.values[n].dtype for n in graph.outputs]
        if call_name in WIDER:
            expected = [F32 if t == low else t for t in expected]
            ours = [F32 if t == low else t for t in ours]
        assert ours == expected[: len(ours)], f"{call_name} of {one}"

    check()


@pytest.mark.parametrize("kind", ["bf16", "fp16", "bf16:pure"])
@pytest.mark.parametrize("model", MODELS)
def test_operators_and_values_agree(model: str, kind: str) -> None:
    """Parameters, the fingerprint and other batches; float64 models stay as they are."""
    captured = small(model)[1]
    precision = read_precision(kind)
    graph = in_precision(captured, precision)
    assert graph is in_precision(captured, precision)
    assert in_precision(graph, Precision()) is captured
    assert graph.fingerprint() == captured.fingerprint()
    for op in graph.ops:
        assert op.dtypes == tuple(graph.values[o].dtype for o in op.outputs)
    for parameter in captured.parameters:
        assert graph.values[parameter.name].dtype == precision.parameter_dtype(parameter.dtype)
    if all(p.dtype == F64 for p in captured.parameters):
        assert [v.dtype for v in graph.values.values()] == [
            v.dtype for v in captured.values.values()
        ]
