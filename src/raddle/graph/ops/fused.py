"""Makes native calls of PyTorch that replace composites, on a device that runs all operators of one.

A composite is a group of operators, such as those of a batch norm; the graph records it as a FusedCall.
`FUSED_KERNELS[kind](attrs)` returns a function from the inputs of a FusedCall to its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Attrs = Mapping[str, Any]

# Native calls that can replace operators with tiles only if the tiles split no dimension but the samples.
# With the other native calls, tiles may split all dimensions that are not reduced.
SAMPLES_ONLY = frozenset({"group_norm", "lstm", "gru", "rnn_tanh", "rnn_relu"})


def _batch_norm(a: Attrs) -> Callable[..., Any]:
    def run(x: Tensor, weight: Any, bias: Any, mean: Tensor | None, var: Tensor | None) -> Any:
        if mean is None or var is None:  # True below: training, with the statistics of the batch
            return (F.batch_norm(x, None, None, weight, bias, True, 0.0, a["eps"]),)
        if not a.get("in_place"):  # unless the runtime allows to update the buffers themselves
            mean, var = mean.clone(), var.clone()
        # With statistics in float32, PyTorch takes a 16-bit input, but no 16-bit weight and bias.
        weight, bias = (p if p is None else p.to(mean.dtype) for p in (weight, bias))
        return F.batch_norm(x, mean, var, weight, bias, True, a["momentum"], a["eps"]), mean, var

    return run


def _layer_norm(a: Attrs) -> Callable[..., Any]:
    return lambda x, w, b: (F.layer_norm(x, x.shape[-a["rank"] :], w, b, a["eps"]),)


def _rms_norm(a: Attrs) -> Callable[..., Any]:
    return lambda x, w: (F.rms_norm(x, x.shape[-a["rank"] :], w, a["eps"]),)


def _group_norm(a: Attrs) -> Callable[..., Any]:
    return lambda x, w, b: (F.group_norm(x, a["groups"], w, b, a["eps"]),)


def _softmax(a: Attrs) -> Callable[..., Any]:
    return lambda x: (torch.softmax(x, a["dim"]),)


def _log_softmax(a: Attrs) -> Callable[..., Any]:
    return lambda x: (torch.log_softmax(x, a["dim"]),)


def _cross_entropy(a: Attrs) -> Callable[..., Any]:
    reduction = ("none", "mean", "sum")[a["reduction"]]
    return lambda x, t, w: (
        F.cross_entropy(
            x, t, w, ignore_index=a["ignore"], reduction=reduction, label_smoothing=a["smoothing"]
        ),
    )


def _recurrent(call: Callable[..., Any], states: int) -> Callable[[Attrs], Callable[..., Any]]:
    """Returns the entry of FUSED_KERNELS for one recurrent layer in one direction.

    states: the number of states of its cell, 2 for an LSTM. The inputs of the kernel are the inputs of all
    time steps, the initial states (None: zeros) and the parameters.
    """

    def make(a: Attrs) -> Callable[..., Any]:
        steps, direction = a["steps"], -1 if a["reverse"] else 1
        # The flags are: has_biases, num_layers, dropout, train, bidirectional, batch_first.
        # train is True although there is no dropout: cuDNN has no backward otherwise.
        flags = (a["biases"], 1, 0.0, True, False, False)

        def run(*operands: Any) -> Any:
            x = torch.stack(operands[:steps][::direction])
            initial_states, params = (
                operands[steps : steps + states],
                list(operands[steps + states :]),
            )
            size = params[1].shape[1]  # of the hidden state: params[1] is weight_hh
            state = [
                x.new_zeros(1, x.shape[1], size) if s is None else s[None] for s in initial_states
            ]
            # results: the outputs of all steps; the last hidden state, which is in `out` too; of an LSTM,
            # the last cell state
            out, _, *cells = call(x, state if states > 1 else state[0], params, *flags)
            return (*out.unbind()[::direction], *(s[0] for s in cells))

        return run

    return make


FUSED_KERNELS: dict[str, Callable[[Attrs], Callable[..., Any]]] = {
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "cross_entropy": _cross_entropy,
    "lstm": _recurrent(torch.lstm, 2),
    "gru": _recurrent(torch.gru, 1),
    "rnn_tanh": _recurrent(torch.rnn_tanh, 1),
    "rnn_relu": _recurrent(torch.rnn_relu, 1),
}
