"""Replaces torch functions while the plain module runs, so that it computes the same numbers as the plan.

The plain module is the reference with which `raddle verify` compares a plan. A TorchFunctionMode intercepts
the calls; the module itself is not changed. Functions with dropout, and functions that draw random numbers,
give raddle's numbers, which depend only on the seed of the step and the position of the element. With
`bn: local`, batch norms compute their statistics tile by tile (local_statistics.py). An operator's kernel,
from make_kernel, is the function by which the runtime computes a box of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op
from raddle.graph.ops import make_kernel
from raddle.graph.ops.exact_dropout_attention import attention_weights, weights_shape
from raddle.graph.ops.random import drop, stream_of
from raddle.graph.overloads import resolve_overload

RECURRENT: tuple[Any, ...] = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
# Functions whose results are random numbers: operators of the kinds "draw" and "bernoulli" in the graph.
DRAWS: tuple[Any, ...] = (
    torch.rand, torch.randn, torch.randint, torch.rand_like, torch.randn_like, torch.randint_like,
    torch.normal, torch.bernoulli, Tensor.bernoulli, Tensor.bernoulli_, Tensor.uniform_, Tensor.normal_,
    Tensor.exponential_,
)  # fmt: skip
# The end of error messages about a dropout that cannot get raddle's mask.
ADVICE = "there is no plain module to compare with; verify a model without it."

Normalise = Callable[..., Tensor]  # a replacement for F.batch_norm, with the same arguments


class Substitutes(TorchFunctionMode):
    """Replaces functions during one forward of the plain module.

    The n-th random call of the forward gives the numbers of the n-th random stream. The graph has no
    operator for a stream if its numbers have no influence on the loss. normalise: the replacement for
    F.batch_norm; None: it is not replaced.
    """

    def __init__(self, graph: Graph, seed: int, normalise: Normalise | None = None) -> None:
        super().__init__()
        # The random operators that no call has used yet, attention with dropout included, by random stream.
        self.random_ops = {op.attrs["stream"]: op for op in graph.ops if "stream" in op.attrs}
        self.calls = 0  # the number of random calls so far
        self.seed = torch.tensor(seed)
        self.replacements: dict[Any, Callable[..., Any]] = {
            F.scaled_dot_product_attention: self._attention,
            F.multi_head_attention_forward: self._attention_layer,
            **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d), self._dropout),
            **dict.fromkeys((torch.dropout, torch.feature_dropout), self._dropout),
            **{function: _recurrent(function, self._drop) for function in RECURRENT},
            **{function: partial(self._draw, function) for function in DRAWS},
            **dict.fromkeys((torch.multinomial, Tensor.multinomial), self._multinomial),
            torch.randperm: self._randperm,
        }
        if normalise is not None:
            self.replacements[F.batch_norm] = normalise

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return self.replacements.get(func, func)(*args, **(kwargs or {}))

    def finish(self) -> None:
        """Raise InputError if the graph has a random operator that no intercepted call used."""
        if (unused := next(iter(self.random_ops.values()), None)) is not None:
            raise InputError(
                f"the {unused.kind} '{unused.name}' runs inside of a native call of torch: {ADVICE}"
            )

    def _next_op(self) -> Op | None:
        """Return the operator of the next random call; None: its numbers are not in the graph."""
        self.calls += 1
        return self.random_ops.pop(stream_of(self.calls - 1), None)

    def _draw(self, function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """Call a function of DRAWS; return raddle's random numbers in place of torch's."""
        result, op = function(*args, **kwargs), self._next_op()
        if op is None:
            return result
        if op.kind not in ("draw", "bernoulli") or result.shape != _masked_shape(op):
            raise InputError(
                f"random numbers of shape {list(result.shape)} are not in the graph: {ADVICE}"
            )
        # The probabilities are the tensor itself, or the argument `p`.
        probabilities = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)][-1:]
        operands = [p.expand(result.shape) for p in probabilities if op.kind == "bernoulli"]
        drawn: Tensor = make_kernel(op, op.space.full, result.device)(*operands, self.seed)[0]
        with torch.no_grad():
            return result.copy_(drawn)

    def _multinomial(
        self, input: Tensor, num_samples: int, replacement: bool = False, **kwargs: Any
    ) -> Tensor:
        if (
            replacement and num_samples > 1
        ):  # an opaque operator, which draws no numbers of raddle's
            return torch.multinomial(input, num_samples, replacement, **kwargs)
        noise = self._draw(Tensor.exponential_, torch.empty_like(input))
        return (input / noise).topk(num_samples, -1).indices

    def _randperm(self, n: int, **kwargs: Any) -> Tensor:
        dtype = kwargs.pop("dtype", None) or torch.int64
        numbers = self._draw(torch.rand, n, dtype=torch.float64, device=kwargs.get("device"))
        return numbers.argsort().to(dtype)

    def _drop(self, x: Tensor, p: float, kind: str = "dropout") -> Tensor:
        """Apply the next dropout of the graph, with the mask that the runtime computes.

        kind: the kind of the operator that has the dropout, "dropout" or "attention".
        """
        op = self._next_op()
        if op is None or (op.kind, op.attrs["p"], _masked_shape(op)) != (kind, p, tuple(x.shape)):
            raise InputError(
                f"a dropout with p={p} of a tensor {list(x.shape)} is not in the graph: {ADVICE}"
            )
        if kind == "dropout":
            dropped: Tensor = make_kernel(op, op.space.full)(x, self.seed)[0]
            return dropped
        return drop(x, self.seed, Box.full(x.shape), x.shape, p, op.attrs["stream"])

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        return self._drop(input, p) if training and p > 0 else input

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        """Return attention, computed as torch documents it, with raddle's dropout.

        Without dropout, torch's own function computes it.
        """
        options: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        if dropout_p == 0:
            return F.scaled_dot_product_attention(query, key, value, attn_mask, **options)
        if enable_gqa:
            times = query.shape[-3] // key.shape[-3]
            key, value = (x.repeat_interleave(times, -3) for x in (key, value))
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        first = 0 if is_causal else None  # with a causal mask: the number of the first query
        weights = attention_weights(query, key, attn_mask, first, scale)
        return self._drop(weights, dropout_p, "attention") @ value

    def _attention_layer(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function of nn.MultiheadAttention, with its inner calls patched.

        A TorchFunctionMode is off while it handles a call, so that it does not see the inner calls.
        """
        with (
            mock.patch.object(F, "dropout", self._dropout),
            mock.patch.object(F, "scaled_dot_product_attention", self._attention),
        ):
            return F.multi_head_attention_forward(*args, **kwargs)


def _masked_shape(op: Op) -> tuple[int, ...]:
    """Return the shape of the tensor of which an operator with dropout drops elements."""
    if op.kind == "attention":
        return weights_shape(op)
    return tuple(d.size for d in op.space.dims)


def _recurrent(function: Any, drop: Callable[[Tensor, float], Tensor]) -> Callable[..., Any]:
    """Return a replacement for a recurrent function, such as torch.lstm.

    It runs layer by layer and applies `drop` between layers, with a mask for each time step.
    """

    def run(
        x: Tensor, states: Any, params: Any, biases: Any, layers: Any = 1, p: Any = 0.0,
        train: Any = False, bidirectional: Any = False, batch_first: Any = False,
    ) -> Any:  # fmt: skip
        if not (train and p > 0 and layers > 1) or not isinstance(params, (list, tuple)):
            flags = (biases, layers, p, train, bidirectional, batch_first)
            return function(x, states, params, *flags)
        # time: the dimension of the time steps.
        directions, time = 2 if bidirectional else 1, 1 if batch_first else 0
        # pair: the states are two tensors (LSTM), not one.
        params_per_layer, pair = len(params) // layers, isinstance(states, (list, tuple))
        states_by_layer: list[Any] = []
        for layer in range(layers):
            if layer:
                x = torch.stack([drop(v, p) for v in x.unbind(time)], time)
            layer_params = params[layer * params_per_layer : (layer + 1) * params_per_layer]
            layer_states = [
                s[layer * directions : (layer + 1) * directions]
                for s in (states if pair else [states])
            ]
            flags = (biases, 1, 0.0, train, bidirectional, batch_first)
            x, *final_states = function(
                x, layer_states if pair else layer_states[0], layer_params, *flags
            )
            states_by_layer.append(final_states)
        return (
            x,
            *(
                torch.cat([state[i] for state in states_by_layer])
                for i in range(len(states_by_layer[0]))
            ),
        )

    return run


def refuse_random(graph: Graph) -> None:
    """Raise InputError if an operator draws random numbers that raddle cannot reproduce."""
    for op in graph.opaque_ops:
        if torch.Tag.nondeterministic_seeded in resolve_overload(op.attrs["call"]).tags:
            raise InputError(
                f"'{op.name}' ({op.label}) draws random numbers, which differ from run to run: "
                "verify a model without it."
            )
