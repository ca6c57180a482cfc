"""LSTM, GRU and plain recurrent networks, unrolled into operators for each step, layer and gate.

    gate   y[n c] += x[n k] * w[c+row0 k] + b[c+row0]      linear on the gate's rows of the weight
    cell   h[n c], s[n c] = gates[n c].., s[n c]           elementwise

So samples, features and layers can be split, and different devices can run layers and steps at the same
time. A device that runs all of a layer, in one direction, uses a native call (fused.py).

As in every file of ops/: index notation is explained in graph/space.py; `_x_kernel(tile)` returns the
function that computes one tile, which is a box of the operator on a device; `_translate_x` turns an ATen
call into operators of the builder `b`. `A` is torch.ops.aten.
`raise NotSplittable` makes the call an opaque operator, which is never split.
`declare` adds an operator kind with traits (traits.py), `b.emit` adds an operator to the graph; its
argument `suffix` is the last part of the operator's name.
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
from raddle.graph.ops.pointwise import pointwise_notation
from raddle.graph.ops.random import dropout
from raddle.graph.ops.shape import cat, select
from raddle.graph.traits import SavedTensors, Traits

A = torch.ops.aten


def _lstm_cell_kernel(tile: OperatorTile) -> Kernel:
    """Returns the kernel of an LSTM cell. A cell is elementwise, so its kernel is the same for every tile.

    xi and hi are the results of gate i's linear operators on the input and on the hidden state; s is the
    cell state. The gates are i, f, g, o, and in a GRU r, z, n, as in the documentation of torch.
    """

    def run(
        xi: Tensor, xf: Tensor, xg: Tensor, xo: Tensor,
        hi: Tensor, hf: Tensor, hg: Tensor, ho: Tensor, s: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        i, f, o = torch.sigmoid(xi + hi), torch.sigmoid(xf + hf), torch.sigmoid(xo + ho)
        s = f * s + i * torch.tanh(xg + hg)
        return o * torch.tanh(s), s

    return run


def _gru_cell_kernel(tile: OperatorTile) -> Kernel:
    def run(
        xr: Tensor, xz: Tensor, xn: Tensor, hr: Tensor, hz: Tensor, hn: Tensor, h: Tensor
    ) -> Tensor:
        r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
        new = torch.tanh(xn + r * hn)
        return new + z * (h - new)

    return run


declare(
    "lstm_cell",
    pointwise_notation,
    _lstm_cell_kernel,
    Traits(SavedTensors.INPUTS),
    flops_per_point=13,
)
declare(
    "gru_cell",
    pointwise_notation,
    _gru_cell_kernel,
    Traits(SavedTensors.INPUTS),
    flops_per_point=11,
)
declare(
    "rnn_tanh_cell",
    pointwise_notation,
    lambda _: lambda x, h: torch.tanh(x + h),
    Traits(SavedTensors.OUTPUT),
    flops_per_point=2,
)
declare(
    "rnn_relu_cell",
    pointwise_notation,
    lambda _: lambda x, h: torch.relu(x + h),
    Traits(SavedTensors.OUTPUT),
    flops_per_point=2,
)


class CellType(NamedTuple):
    """A type of recurrent cell: LSTM, GRU, or plain with tanh or relu."""

    kind: str  # name of the ATen call and key of FUSED_KERNELS; with "_cell", the operator kind
    gates: str  # one letter per gate, in the order of the weight's rows
    states: int  # number of states; 2 for an LSTM: hidden and cell


class LayerWeights(NamedTuple):
    """Parameters of one layer in one direction: weight_ih, weight_hh, bias_ih and bias_hh of nn.LSTM."""

    ih: Value
    hh: Value
    b_ih: Value | None = None
    b_hh: Value | None = None


LSTM, GRU = CellType("lstm", "ifgo", 2), CellType("gru", "rzn", 1)
TANH, RELU = CellType("rnn_tanh", "h", 1), CellType("rnn_relu", "h", 1)


def _step(
    b: Builder, cell_type: CellType, w: LayerWeights, x: Value, states: list[Value], name: str
) -> list[Value]:
    """Adds one step of one layer; returns the new states.

    Each gate has a linear operator on the input and one on the hidden state; the cell comes after them.
    name: of the step, such as l0.t3; the names of its operators begin with it.
    """
    size = states[0].shape[-1]

    def gates(side: str, source: Value, weight: Value, bias: Value | None) -> list[Value]:
        rows = [(g * size, (g + 1) * size) for g in range(len(cell_type.gates))]
        return [
            linear(b, source, weight, bias, rows=r, suffix=f"{name}.{side}{gate}")
            for r, gate in zip(rows, cell_type.gates, strict=True)
        ]

    operands = gates("x", x, w.ih, w.b_ih) + gates("h", states[0], w.hh, w.b_hh)
    # An LSTM's cell also reads its cell state, a GRU's the hidden state.
    operands += {"lstm": states[1:], "gru": states}.get(cell_type.kind, [])
    outputs = [(states[0].shape, x.dtype)] * cell_type.states
    result = b.emit(f"{cell_type.kind}_cell", operands, outputs, suffix=f"{name}.cell")
    return list(result) if cell_type.states > 1 else [result]


def _is_zeros(b: Builder, states: Value) -> bool:
    """Returns whether initial states are zeros made in the graph, as nn.LSTM makes if it is given none."""
    producer = next((op for op in b.ops if states.name in op.outputs), None)
    return producer is not None and producer.kind == "full" and producer.attrs["value"] == 0


def _initial_state(b: Builder, states: Value, x: Value) -> Callable[[int], Value]:
    """Returns a function from layer and direction, as one number, to the initial state.

    states: of all layers and directions. If they are zeros, one tensor of zeros serves all of them; it gets
    the letters of x, the input of a step, so that it can be split like x.
    """
    if not _is_zeros(b, states):
        return lambda number: select(b, states, 0, number)
    attrs = {"value": 0, "letters": x.letters}
    shape = (x.shape[0], states.shape[-1])
    zeros = b.emit("full", [], [(shape, states.dtype)], attrs, suffix="start")
    return lambda number: zeros


def unroll(
    b: Builder, cell_type: CellType, x: Value, states: Sequence[Value], params: Sequence[Value],
    biases: bool, layers: int, p: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """Adds all steps of all layers; returns the output sequence and the last states.

    states: the initial states of all layers; an LSTM has two values, hidden and cell. params: in the order
    of torch, layer by layer and direction by direction. p: probability of dropout between layers.
    """
    # per_layer: number of parameters of a layer in one direction, as in LayerWeights
    directions, per_layer = 2 if bidirectional else 1, 4 if biases else 2
    if len(params) != layers * directions * per_layer or len(x.shape) != 3:
        raise NotSplittable  # an LSTM with projections (proj_size), or no sample dimension
    weights = [LayerWeights(*params[i : i + per_layer]) for i in range(0, len(params), per_layer)]
    time_dim = 1 if batch_first else 0
    are_zeros = [_is_zeros(b, s) for s in states]
    # The composite as a whole has no fused call; each layer and direction adds one of its own below.
    with b.composite(cell_type.kind, [], has_fused_call=False):
        sequence = [select(b, x, time_dim, t) for t in range(x.shape[time_dim])]
        initial_states = [_initial_state(b, s, sequence[0]) for s in states]
        last_states: list[list[Value]] = []  # of each layer and direction
        for layer in range(layers):
            # dropped: the steps whose input has got its dropout, which both directions share
            outputs_by_direction, dropped = [], set[int]()
            for direction in range(directions):
                number = layer * directions + direction
                state = [initial_state(number) for initial_state in initial_states]
                # for the native call, which takes None for zeros
                initial = [None if z else s for z, s in zip(are_zeros, state, strict=True)]
                steps, ops = range(len(sequence)), list[Op]()
                outputs = [sequence[0]] * len(sequence)
                for t in reversed(steps) if direction else steps:
                    if layer and train and p > 0 and t not in dropped:
                        # Directly before its step: a layer can start before the layer below ends.
                        sequence[t] = dropout(b, sequence[t], p, suffix=f"l{layer}.t{t}.dropout")
                        dropped.add(t)
                    # r: the reverse direction; first: the number of the step's first operator
                    name, first = f"l{layer}{'r' if direction else ''}.t{t}", len(b.ops)
                    state = _step(b, cell_type, weights[number], sequence[t], state, name)
                    ops += b.ops[first:]
                    outputs[t] = state[0]
                attrs = {"steps": len(steps), "biases": biases, "reverse": bool(direction)}
                operands = [*sequence, *initial, *weights[number][:per_layer]]
                b.add_fused_call(cell_type.kind, ops, operands, [*outputs, *state[1:]], attrs)
                outputs_by_direction.append(outputs)
                last_states.append(state)
            sequence = (
                [cat(b, pair, -1) for pair in zip(*outputs_by_direction, strict=True)]
                if directions > 1
                else outputs_by_direction[0]
            )
        stacked = b.call(A.stack.default, sequence, time_dim)
        final = [
            b.call(A.stack.default, [state[i] for state in last_states], 0)
            for i in range(cell_type.states)
        ]
    return (stacked, *final)


def _translator(cell_type: CellType) -> Callable[..., Any]:
    """Returns the function that translates a cell type's ATen call; flags: the arguments after `params`."""

    def translate(b: Builder, x: Value, states: Any, params: Any, *flags: Any) -> Any:
        if not isinstance(params, (list, tuple)):
            raise NotSplittable  # packed sequences come with other arguments
        initial = [states] if isinstance(states, Value) else list(states)
        return unroll(b, cell_type, x, initial, params, *flags)

    return translate


for _cell_type in (LSTM, GRU, TANH, RELU):
    aten(_cell_type.kind)(_translator(_cell_type))
