"""Derives the dtypes of a graph's values under a precision: in which dtype each operator computes.

Under autocast, PyTorch casts the operands of a call by lists of calls. This file has the lists of CUDA
devices (autocast_mode.h of PyTorch), applied to raddle's operators:

    low       products and recurrent cells: floating-point operands are cast to bfloat16 or float16
    float32   losses, norms, softmax, exponentials, powers, sums: operands are cast to float32
    others    compute in the dtype of their operands; of several, in the widest (type promotion), but a
              norm or a pool in the dtype of its first operand

Norms, softmax and cross entropy are decomposed; their statistics are always float32. A batch norm returns
the dtype of its input; layer norm, group norm, RMS norm and softmax return float32. Float64 is never cast.

On a CPU PyTorch's lists are shorter: softmax and norms compute in bfloat16 there. A run converts each value
that leaves a segment to the dtype of this file, so what is sent does not depend on the device.

`in_precision` returns the graph with these dtypes. All that asks the graph for a dtype follows: messages,
costs, memory and the run.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import torch

from raddle.errors import InputError, shorten
from raddle.graph.dtypes import cast_dtype
from raddle.graph.graph import Graph, Op, Value
from raddle.graph.operand_refs import call_with_operands
from raddle.graph.overloads import resolve_overload
from raddle.plans.precision import Precision

# Operator kinds and ATen calls whose operands are cast to 16 bits. Most calls are only in opaque operators.
_LOW_KINDS = {
    *(f"conv{rank}d" for rank in (1, 2, 3)), *(f"conv_transpose{rank}d" for rank in (1, 2, 3)),
    "linear", "matmul", "einsum", "attention", "prelu",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
}  # fmt: skip
_LOW_CALLS = {
    "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "convolution", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm",
    "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention", "lstm",
    "gru", "rnn_tanh", "rnn_relu",
}  # fmt: skip
# Operator kinds and ATen calls whose operands are cast to float32.
_FLOAT32_KINDS = {"softmax", "layer_norm", "interpolate"}
_FLOAT32_CALLS = {
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
    "rsqrt", "sinh", "tan", "pow", "softplus", "layer_norm", "native_layer_norm", "group_norm", "rms_norm",
    "frobenius_norm", "nuclear_norm", "norm", "linalg_vector_norm", "linalg_matrix_norm", "renorm",
    "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "nll_loss_nd", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "cross_entropy_loss", "dist", "pdist", "cdist",
    "logsumexp", "prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum",
}  # fmt: skip
_REFUSED_CALLS = {"binary_cross_entropy"}  # autocast raises an error
# Composites all of whose operators compute in float32, as the native call does.
_FLOAT32_COMPOSITES = {"rms_norm", "layer_norm", "group_norm", "cross_entropy"}
# The statistics of decomposed norms and losses, which are float32 for operands of 16 bits too.
_STATISTICS = {"moments", "lse", "entropy", "counted"}


def in_precision(graph: Graph, precision: Precision) -> Graph:
    """Returns the graph with the dtypes that its values have when it is trained in a precision.

    Parameters keep their dtype under autocast. `Graph.casts` of the result says to which dtype an operator
    casts its operands. The fingerprint stays that of the captured graph.

    >>> import raddle
    >>> loss = raddle.supervised(torch.nn.functional.mse_loss)
    >>> graph = raddle.capture(torch.nn.Linear(4, 2), (torch.randn(8, 4), torch.randn(8, 2)), loss)
    >>> under_autocast = in_precision(graph, Precision("bf16"))
    >>> under_autocast.values[under_autocast.ops[0].outputs[0]].dtype
    torch.bfloat16
    """
    captured = graph.captured or graph
    key = precision.kind, precision.pure
    if key == ("float32", False):
        return captured
    if key not in captured.in_precisions:
        captured.in_precisions[key] = _derive(captured, precision)
    return captured.in_precisions[key]


def _derive(graph: Graph, precision: Precision) -> Graph:
    recapture = graph.recapture and (lambda batch: in_precision(graph.for_batch(batch), precision))
    if precision.tf32_products:
        return replace(graph, tf32_products=True, captured=graph, recapture=recapture)
    values = {
        name: replace(value, dtype=precision.parameter_dtype(value.dtype))
        if value.role in ("parameter", "frozen")
        else value
        for name, value in graph.values.items()
    }
    dtypes_of = _OutputDtypes(graph, precision)
    ops, casts = list[Op](), dict[str, torch.dtype]()
    for op in graph.ops:
        cast = None if precision.pure else _cast_of(op, precision)
        dtypes = dtypes_of(op, values, cast)
        ops.append(op if dtypes == op.dtypes else replace(op, dtypes=dtypes))
        values |= {o: replace(values[o], dtype=t) for o, t in zip(op.outputs, dtypes, strict=True)}
        if cast is not None:
            casts[op.name] = cast
    return replace(
        graph, values=values, ops=tuple(ops), casts=casts, captured=graph, recapture=recapture
    )


def _cast_of(op: Op, precision: Precision) -> torch.dtype | None:
    """Returns the dtype to which autocast casts an operator's operands; None: it leaves them."""
    call = op.label if "call" in op.attrs else ""
    if call in _REFUSED_CALLS:
        raise _refusal(op, "autocast refuses it: take the loss with logits")
    if op.kind in _LOW_KINDS or call in _LOW_CALLS:
        return precision.low_dtype
    if (
        op.kind in _FLOAT32_KINDS
        or call in _FLOAT32_CALLS
        or op.composite_kind in _FLOAT32_COMPOSITES
        or (op.kind == "sum" and op.attrs["scale"] == 1)  # otherwise it is a mean
    ):
        return torch.float32
    return None


class _OutputDtypes:
    """Returns the dtypes of an operator's outputs, given those of its operands; remembers equal calls."""

    def __init__(self, graph: Graph, precision: Precision) -> None:
        self.captured, self.precision = graph.values, precision
        self.seen: dict[Hashable, tuple[torch.dtype, ...]] = {}

    def __call__(
        self, op: Op, values: Mapping[str, Value], cast: torch.dtype | None
    ) -> tuple[torch.dtype, ...]:
        operands = [
            replace(values[name], dtype=self._operand_dtype(values[name], cast))
            for name in op.inputs
        ]
        # Attributes name dtypes and operands, so they are part of the key; shapes matter for 0 dimensions.
        key = (
            op.kind, repr(sorted(op.attrs.items())) if "call" in op.attrs else "", op.dtypes,
            tuple((v.dtype, self.captured[v.name].dtype, not v.shape) for v in operands),
        )  # fmt: skip
        if key not in self.seen:
            self.seen[key] = self._infer(op, operands)
        return self.seen[key]

    def _operand_dtype(self, operand: Value, cast: torch.dtype | None) -> torch.dtype:
        """Returns the dtype in which an operator reads an operand.

        With bf16:pure, a run casts float32 inputs of the module to bfloat16; their dtype in the graph stays
        float32.
        """
        if operand.role == "input":
            return cast_dtype(self.precision.parameter_dtype(operand.dtype), cast)
        return cast_dtype(operand.dtype, cast)

    def _infer(self, op: Op, operands: Sequence[Value]) -> tuple[torch.dtype, ...]:
        if op.kind in _STATISTICS or not operands:
            return op.dtypes
        if "call" in op.attrs:
            return _dtypes_of_call(op, operands)
        derived = _widest_or_first(op, [v.dtype for v in operands])
        captured = _widest_or_first(op, [self.captured[v.name].dtype for v in operands])
        # An output that has another dtype than its operands was asked for in this dtype.
        return tuple(derived if t == captured and derived else t for t in op.dtypes)


def _widest_or_first(op: Op, dtypes: Sequence[torch.dtype]) -> torch.dtype | None:
    """Returns the dtype that follows from those of floating-point operands; None: there are none.

    A concatenation (cat) has the widest of them. Every other kind that comes here has that of its first
    operand: the other operands of a norm, its scale and its statistics, may be wider.
    """
    floating = [t for t in dtypes if t.is_floating_point]
    if op.kind == "cat":
        return reduce(torch.promote_types, floating) if floating else None
    return floating[0] if floating else None


def _dtypes_of_call(op: Op, operands: Sequence[Value]) -> tuple[torch.dtype, ...]:
    """Returns the dtypes that an ATen call returns, by making it without data."""
    tensors = [torch.empty(v.shape, dtype=v.dtype, device="meta") for v in operands]
    kwargs: Mapping[str, object] = op.attrs["kwargs"]
    target = resolve_overload(op.attrs["call"])
    if any(a.name == "device" for a in target._schema.arguments):
        kwargs = {**kwargs, "device": torch.device("meta")}
    try:
        result = call_with_operands(target, op.attrs["args"], kwargs)(tensors)
    except (RuntimeError, NotImplementedError) as error:
        raise _refusal(op, str(error)) from None
    results = (result,) if isinstance(result, torch.Tensor) else tuple(result)
    numbers = op.attrs.get("outputs", range(len(op.outputs)))
    return tuple(results[i].dtype for i in numbers)


def _refusal(op: Op, reason: str) -> InputError:
    return InputError(
        f"'{op.name}' calls {op.label}, which has no 16-bit precision ({shorten(reason, 80)}): "
        "use precision float32 or tf32, or convert its operands to float32 in the model."
    )
