"""LSTM, GRU and plain recurrent networks, taken apart into step × layer × gate.

    gate   y[n c] += x[n k] * w[c+row0 k] + b[c+row0]      linear on the gate's rows of the weight
    cell   h[n c], s[n c] = gates[n c].., s[n c]           elementwise

so samples, features and layers can be split, and layers and steps run at the same time on
different devices. Where a device holds all of a layer, in one direction, a native call runs it (fused.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raddle.graph.builder import Builder, NotSplittable, aten
from raddle.graph.graph import Op, Value
from raddle.graph.operator_kind import Kernel, OperatorTile, declare
from raddle.graph.ops.contraction import linear
from raddle.graph.ops.pointwise import pointwise_line
from raddle.graph.ops.random import dropout
from raddle.graph.ops.shape import cat, select
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten


def _lstm_cell(site: OperatorTile) -> Kernel:
    def run(
        xi: Tensor, xf: Tensor, xg: Tensor, xo: Tensor,
        hi: Tensor, hf: Tensor, hg: Tensor, ho: Tensor, s: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        i, f, o = torch.sigmoid(xi + hi), torch.sigmoid(xf + hf), torch.sigmoid(xo + ho)
        s = f * s + i * torch.tanh(xg + hg)
        return o * torch.tanh(s), s

    return run


def _gru_cell(site: OperatorTile) -> Kernel:
    def run(
        xr: Tensor, xz: Tensor, xn: Tensor, hr: Tensor, hz: Tensor, hn: Tensor, h: Tensor
    ) -> Tensor:
        r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
        new = torch.tanh(xn + r * hn)
        return new + z * (h - new)

    return run


declare("lstm_cell", pointwise_line, _lstm_cell, Traits(SavedTensors.INPUTS), flops_per_point=13)
declare("gru_cell", pointwise_line, _gru_cell, Traits(SavedTensors.INPUTS), flops_per_point=11)
declare(
    "rnn_tanh_cell",
    pointwise_line,
    lambda _: lambda x, h: torch.tanh(x + h),
    Traits(SavedTensors.OUTPUT),
    flops_per_point=2,
)
declare(
    "rnn_relu_cell",
    pointwise_line,
    lambda _: lambda x, h: torch.relu(x + h),
    Traits(SavedTensors.OUTPUT),
    flops_per_point=2,
)


class Form(NamedTuple):
    """What tells the networks apart: the gates in the order of the weight's rows, and the states."""

    kind: str
    gates: str
    states: int  # 2 for an LSTM: hidden and cell


class Weights(NamedTuple):
    """Parameters of one layer in one direction."""

    ih: Value
    hh: Value
    b_ih: Value | None = None
    b_hh: Value | None = None


LSTM, GRU = Form("lstm", "ifgo", 2), Form("gru", "rzn", 1)
TANH, RELU = Form("rnn_tanh", "h", 1), Form("rnn_relu", "h", 1)


def _step(
    b: Builder, form: Form, w: Weights, x: Value, states: list[Value], name: str
) -> list[Value]:
    """One step of one layer: a linear operator a gate for the input and for the state, then the cell."""
    size = states[0].shape[-1]

    def gates(side: str, source: Value, weight: Value, bias: Value | None) -> list[Value]:
        rows = [(g * size, (g + 1) * size) for g in range(len(form.gates))]
        return [
            linear(b, source, weight, bias, rows=r, suffix=f"{name}.{side}{gate}")
            for r, gate in zip(rows, form.gates, strict=True)
        ]

    operands = gates("x", x, w.ih, w.b_ih) + gates("h", states[0], w.hh, w.b_hh)
    operands += {"lstm": states[1:], "gru": states}.get(form.kind, [])
    outputs = [(states[0].shape, x.dtype)] * form.states
    result = b.emit(f"{form.kind}_cell", operands, outputs, suffix=f"{name}.cell")
    return list(result) if form.states > 1 else [result]


def _made_of_zeros(b: Builder, states: Value) -> bool:
    made = next((op for op in b.ops if states.name in op.outputs), None)
    return made is not None and made.kind == "full" and made.attrs["value"] == 0


def _start(b: Builder, states: Value, x: Value) -> Callable[[int], Value]:
    """The initial state of each layer; zeros are made for the layer, with the letters of its input."""
    if not _made_of_zeros(b, states):
        return lambda number: select(b, states, 0, number)
    attrs = {"value": 0, "letters": x.letters}
    shape = (x.shape[0], states.shape[-1])
    zeros = b.emit("full", [], [(shape, states.dtype)], attrs, suffix="start")
    return lambda number: zeros


def unroll(
    b: Builder, form: Form, x: Value, states: Sequence[Value], params: Sequence[Value],
    biases: bool, layers: int, p: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """All steps of all layers; returns the output sequence and the last states."""
    ways, each = 2 if bidirectional else 1, 4 if biases else 2
    if len(params) != layers * ways * each or len(x.shape) != 3:
        raise NotSplittable  # projections, or no sample dimension
    weights = [Weights(*params[i : i + each]) for i in range(0, len(params), each)]
    time = 1 if batch_first else 0
    zeros = [_made_of_zeros(b, s) for s in states]
    with b.composite(form.kind, [], has_fused_call=False):
        sequence = [select(b, x, time, t) for t in range(x.shape[time])]
        starts = [_start(b, s, sequence[0]) for s in states]
        last: list[list[Value]] = []
        for layer in range(layers):
            runs, dropped = [], set[int]()
            for way in range(ways):
                number = layer * ways + way
                state = [start(number) for start in starts]
                given = [None if z else s for z, s in zip(zeros, state, strict=True)]
                steps, ops = range(len(sequence)), list[Op]()
                run = [sequence[0]] * len(sequence)
                for t in reversed(steps) if way else steps:
                    if layer and train and p > 0 and t not in dropped:
                        # Beside its step, so that a layer can begin before the one below has ended.
                        sequence[t] = dropout(b, sequence[t], p, suffix=f"l{layer}.t{t}.dropout")
                        dropped.add(t)
                    name, first = f"l{layer}{'r' if way else ''}.t{t}", len(b.ops)
                    state = _step(b, form, weights[number], sequence[t], state, name)
                    ops += b.ops[first:]
                    run[t] = state[0]
                attrs = {"steps": len(steps), "biases": biases, "reverse": bool(way)}
                operands = [*sequence, *given, *weights[number][:each]]
                b.add_fused_call(form.kind, ops, operands, [*run, *state[1:]], attrs)
                runs.append(run)
                last.append(state)
            sequence = (
                [cat(b, pair, -1) for pair in zip(*runs, strict=True)] if ways > 1 else runs[0]
            )
        stacked = b.call(A.stack.default, sequence, time)
        final = [
            b.call(A.stack.default, [state[i] for state in last], 0) for i in range(form.states)
        ]
    return (stacked, *final)


def _recurrent(form: Form) -> Callable[..., Any]:
    def translate(b: Builder, x: Value, states: Any, params: Any, *flags: Any) -> Any:
        if not isinstance(params, (list, tuple)):
            raise NotSplittable  # packed sequences
        given = [states] if isinstance(states, Value) else list(states)
        return unroll(b, form, x, given, params, *flags)

    return translate


for _form in (LSTM, GRU, TANH, RELU):
    aten(_form.kind)(_recurrent(_form))
