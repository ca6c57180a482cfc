"""Carries out Forward and Backward: runs the generated functions, and autograd through them.

Each segment has its own autograd graph: it runs on new leaf tensors, and its backward puts the gradients of
these leaves into slots. So gradients pass from segment to segment through slots, not through autograd.

A call is a generated function, for a segment or a merge, in one micro-batch (actions.py); its arguments are
slots: `differentiable` (activations that get a gradient), `weights` and `nondifferentiable`. A gradient
edge stands for a result in autograd's graph (torch.autograd.graph.get_gradient_edge); it does not keep the
result's tensor in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from raddle.plans.precision import FLOAT32, Precision
from raddle.program.program import Key
from raddle.runtime.actions import Backward, Call, Forward
from raddle.runtime.autograd_leaves import make_leaf
from raddle.runtime.execution.compiled_functions import CompiledFunctions
from raddle.runtime.execution.parameter_updater import ParameterUpdater
from raddle.runtime.execution.random_generator import generator_seed, seeded_generator
from raddle.runtime.execution.split_backward import SplitCall
from raddle.runtime.execution.store import Store


class Segments:
    """Runs the calls of one rank and saves what their backward needs.

    functions: the functions of calls, compiled or not. seed_of: the seed of a micro-batch. precision: of
    the plan. single_microbatch: whether a step has one micro-batch, so that gradients need not be
    accumulated.
    """

    def __init__(
        self, store: Store, updater: ParameterUpdater, functions: CompiledFunctions, *,
        seed_of: Callable[[Key], int] = lambda key: 0,
        precision: Precision = FLOAT32, single_microbatch: bool = True,
    ) -> None:  # fmt: skip
        self.store, self.updater, self.functions = store, updater, functions
        self.seed_of, self.single_microbatch = seed_of, single_microbatch
        self.autocast = precision.autocast
        # On some devices an operator returns another dtype than the program says (plans/value_dtypes.py).
        self.casts_results = precision.low_dtype is not None
        # Call number -> leaves, weights, gradient edges of the results, and slots of these results.
        self.saved: dict[int, tuple[list[Tensor], list[Tensor], list[Any], list[int]]] = {}
        # Recomputed calls: call number -> weights and nondifferentiable arguments of the first forward.
        self._forward_arguments: dict[int, list[Any]] = {}
        # Split backwards: call number -> edges and result gradients of phase "B", for phase "W".
        self._used_gradients: dict[int, tuple[list[Any], list[Tensor]]] = {}
        # Compiled split backwards: call number -> what their phases need.
        self._split: dict[int, _SavedForPhases] = {}

    def _autocast(self) -> AbstractContextManager[Any]:
        """Returns the context in which functions run forward: autocast, if the user asked for it."""
        if self.autocast is None:
            return nullcontext()
        # Autocast's cache of casted weights would keep ZeRO-3 parameters after they are released.
        use_cache = not self.store.gathered.by_slot
        return torch.autocast(self.store.place.type, dtype=self.autocast, cache_enabled=use_cache)

    def _generator(self, call: Call) -> AbstractContextManager[Any]:
        """Returns the context in which a call draws random numbers; it sets the generator, if needed."""
        if not call.random_stream:
            return nullcontext()
        seed = generator_seed(self.seed_of(call.key), call.random_stream)
        return seeded_generator(self.store.place, seed)

    def forward(self, action: Forward) -> None:
        """Runs a call forward; saves what its backward needs, unless the call is recomputed later."""
        call, slots = action.call, self.store.slots
        builds_graph = call.backward and (action.recomputation or not call.recompute)
        inputs: list[Any] = [slots[s] for s in call.differentiable]
        leaves: list[Tensor] = []
        weights = self.updater.weights_for(action)
        nondifferentiable = [slots[s] for s in call.nondifferentiable]
        if call.recompute and not action.recomputation:
            self._forward_arguments[call.number] = [*weights, *nondifferentiable]
        elif call.recompute:  # use the tensors of the first forward: buffers have changed since
            arguments = self._forward_arguments.pop(call.number)
            weights, nondifferentiable = arguments[: len(weights)], arguments[len(weights) :]
        arguments = [*weights, *nondifferentiable]
        # Addresses of the weights that are ZeRO-3 parameters, gathered for this call; usually empty.
        gathered_memory = self.store.gathered.storage_addresses(call.weights)
        split = None
        if builds_graph and call.split_backward:
            every = [*inputs, *arguments, *call.numbers]
            split = self.functions.split_call(call, self.autocast, every)
        if split is not None:
            builds_graph = False  # each phase of the backward is a function of its own
            self._split[call.number] = _SavedForPhases(split, [v.detach() for v in every], weights)
        # Without gradients, PyTorch may choose another attention kernel, which would draw other masks. So
        # the first forward of a recomputed call with native dropout runs as the second one does.
        if builds_graph or (call.recompute and call.random_stream):
            pairs = [make_leaf(value) for value in inputs]
            leaves, inputs = [leaf for leaf, _ in pairs], [value for _, value in pairs]
            del pairs
            results = self._run(call, inputs, arguments)
        else:
            with torch.no_grad():
                results = self._run(call, inputs, arguments)
        del inputs
        if builds_graph:
            ends = [
                (get_gradient_edge(r), s)
                for r, s in zip(results, call.results, strict=True)
                if r.requires_grad
            ]
            edges_and_slots = [edge for edge, _ in ends], [slot for _, slot in ends]
            self.saved[call.number] = leaves, weights, *edges_and_slots
        if not action.recomputation:
            for slot, result in zip(call.results, results, strict=True):
                detached = result.detach()
                # A result may be a view of a gathered parameter (position embeddings, for example),
                # whose memory is released soon.
                slots[slot] = (
                    detached.clone()
                    if gathered_memory and _storage_address(detached) in gathered_memory
                    else detached
                )
        for slot in action.dead_slots:
            slots[slot] = None
        self.store.gathered.release(action.release)

    def backward(self, action: Backward) -> None:
        """Runs the backward of a call, or one phase of it."""
        if action.call.backward:
            if action.call.number in self._split:
                self._run_phase(action.call, action.phase)
            elif action.phase == "W":
                self._weight_gradients(action.call)
            else:
                self._run_backward(action.call)
        self.store.gathered.release(action.release)

    def _run(self, call: Call, inputs: list[Any], arguments: list[Any]) -> tuple[Tensor, ...]:
        """Runs the function of a call; returns the results in the program's dtypes."""
        with self._autocast(), self._generator(call):
            results: tuple[Tensor, ...] = self.functions.function_of(call)(
                *inputs, *arguments, *call.numbers
            )
        if not self.casts_results:
            return results
        return tuple(r.to(t) for r, t in zip(results, call.dtypes, strict=True))

    def _run_backward(self, call: Call) -> None:
        """Runs phase "B": gradients of activations and, unless the backward is split, of weights."""
        store = self.store
        self.updater.await_weights(call)
        store.gathered.storage_addresses(call.weights)  # asserts that the weights are gathered
        saved = self.saved[call.number] if call.split_backward else self.saved.pop(call.number)
        leaves, weights, edges, result_slots = saved
        edges, result_gradients = self._take_gradients(edges, result_slots)
        weights = [] if call.split_backward else weights
        if call.split_backward:
            self._used_gradients[call.number] = edges, result_gradients
        if edges and (leaves or weights):
            retain_graph = call.split_backward and bool(call.weights)
            gradients = self._gradients(
                call, edges, result_gradients, leaves, weights, retain_graph=retain_graph
            )
            for slot, gradient in zip(call.differentiable, gradients, strict=True):
                if gradient is not None:
                    store.add_gradient(slot, gradient)
        if not call.split_backward:
            self.updater.release_weights(call, weights)

    def _run_phase(self, call: Call, phase: str) -> None:
        """Runs a phase of a compiled split backward: "B" for activations, "W" for weights, the last one."""
        saved, store = self._split[call.number], self.store
        if saved.gradients is None:  # phase "B" or, if there is none, "W"
            taken = [store.take_gradient(call.results[r]) for r in saved.split.results]
            saved.gradients = [
                torch.zeros(store.shapes[call.results[r]], dtype=dtype, device=store.place)
                if gradient is None
                else gradient
                for r, dtype, gradient in zip(
                    saved.split.results, saved.split.dtypes, taken, strict=True
                )
            ]
            saved.has_gradient = any(gradient is not None for gradient in taken)
        gradients: tuple[Tensor, ...] = ()
        if saved.has_gradient:
            with torch.no_grad():
                run = self.functions.phase(saved.split, phase)
                gradients = run(saved.gradients, *saved.arguments)
        if phase == "W":
            self.updater.accumulate(call, gradients)
            self.updater.release_weights(call, saved.weights)
            del self._split[call.number]
        else:
            for slot, gradient in zip(call.differentiable, gradients, strict=False):
                store.add_gradient(slot, gradient)

    def _weight_gradients(self, call: Call) -> None:
        """Runs phase "W": computes gradients of weights only. Phase "B", if there is one, ran before."""
        _, weights, edges, result_slots = self.saved.pop(call.number)
        used_gradients = self._used_gradients.pop(call.number, None)
        edges, result_gradients = (
            self._take_gradients(edges, result_slots) if used_gradients is None else used_gradients
        )
        if edges:
            self._gradients(call, edges, result_gradients, [], weights)
        self.updater.release_weights(call, weights)

    def _gradients(
        self, call: Call, edges: list[Any], result_gradients: list[Tensor], leaves: list[Tensor],
        weights: list[Tensor], *, retain_graph: bool = False,
    ) -> Sequence[Tensor | None]:  # fmt: skip
        """Computes gradients: returns those of leaves, passes those of weights to the updater.

        With several micro-batches, autograd itself adds to the accumulated gradients, weight by weight. So
        the new and the accumulated gradient exist together for only one weight at a time.
        """
        if not weights or self.single_microbatch:
            gradients = torch.autograd.grad(
                edges,
                [*leaves, *weights],
                result_gradients,
                allow_unused=True,
                retain_graph=retain_graph,
            )
            self.updater.accumulate(call, gradients[len(leaves) :])
            return gradients[: len(leaves)]
        for slot, weight in zip(call.weights, weights, strict=True):
            weight.grad = self.updater.accumulated_gradient(call, slot)
        torch.autograd.backward(
            edges, result_gradients, retain_graph=retain_graph, inputs=[*leaves, *weights]
        )
        for slot, weight in zip(call.weights, weights, strict=True):
            if weight.grad is not None:
                self.updater.set_gradient(call, slot, weight.grad)
                weight.grad = None  # the updater has the gradient now
        return [leaf.grad for leaf in leaves]

    def _take_gradients(
        self, edges: Sequence[Any], result_slots: Sequence[int]
    ) -> tuple[list[Any], list[Tensor]]:
        """Takes the gradients of a call's results from their slots; returns them with the results' edges.

        It leaves out results without a gradient.
        """
        edges_with_gradient, gradients = [], []
        for edge, slot in zip(edges, result_slots, strict=True):
            gradient = self.store.take_gradient(slot)
            if gradient is not None:
                edges_with_gradient.append(edge)
                gradients.append(gradient)
        return edges_with_gradient, gradients


@dataclass
class _SavedForPhases:
    """What the phases of a compiled split backward need."""

    split: SplitCall
    arguments: list[Tensor]  # of the forward
    weights: list[Tensor]  # those of them that are weights, as `weights_for` gave them
    gradients: list[Tensor] | None = None  # of the results; None: no phase has run
    has_gradient: bool = False  # whether any result has a gradient


def _storage_address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
