"""Segments forward and backward: each runs on leaves of its own, and hands gradients back slot by slot."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from raddle.runtime.actions import Backward, Call, Forward
from raddle.runtime.autograd_leaves import make_leaf
from raddle.runtime.execution.parameter_updater import ParameterUpdater
from raddle.runtime.execution.store import Store


class Segments:
    """What the calls of one rank keep for their backward.

    `adds_once`: whether a step adds to the gradient of a weight but once in each call, which then need
    not be done by autograd itself.
    """

    def __init__(
        self, store: Store, parameters: ParameterUpdater, *, autocast: torch.dtype | None = None,
        adds_once: bool = True,
    ) -> None:  # fmt: skip
        self.store, self.parameters = store, parameters
        self.autocast, self.adds_once = autocast, adds_once
        # By call: leaves and weights that it ran on, ends of its graph, and the slots of its results.
        self.saved: dict[int, tuple[list[Tensor], list[Tensor], list[Any], list[int]]] = {}
        self._read: dict[int, list[Any]] = {}  # by calls that run again
        self._seeded: dict[int, tuple[list[Any], list[Tensor]]] = {}  # by calls in two phases

    def precision(self) -> AbstractContextManager[Any]:
        """What all segments run in."""
        if self.autocast is None:
            return nullcontext()
        # What a cache keeps of weights would outlast them where they are divided.
        cached = not self.store.wholes.found
        return torch.autocast(self.store.place.type, dtype=self.autocast, cache_enabled=cached)

    def forward(self, action: Forward) -> None:
        call, slots = action.call, self.store.slots
        graph = call.backward and (action.recomputation or not call.recompute)
        entered: list[Any] = [slots[s] for s in call.differentiable]
        leaves: list[Tensor] = []
        weights = self.parameters.weights_for(action)
        plain = [slots[s] for s in call.nondifferentiable]
        if call.recompute and not action.recomputation:
            self._read[call.number] = [*weights, *plain]
        elif call.recompute:  # buffers have new values by now: it reads them as they were
            rest = self._read.pop(call.number)
            weights, plain = rest[: len(weights)], rest[len(weights) :]
        rest = [*weights, *plain]
        lent = self.store.wholes.memory(call.weights)
        if graph:
            pairs = [make_leaf(value) for value in entered]
            leaves, entered = [leaf for leaf, _ in pairs], [value for _, value in pairs]
            del pairs
            results = self._typed(call, call.code.function(*entered, *rest))
        else:
            with torch.no_grad():
                results = self._typed(call, call.code.function(*entered, *rest))
        del entered
        if graph:
            ends = [
                (get_gradient_edge(r), s)
                for r, s in zip(results, call.results, strict=True)
                if r.requires_grad
            ]
            own = [e for e, _ in ends], [s for _, s in ends]
            self.saved[call.number] = leaves, weights, *own
        if not action.recomputation:
            for slot, result in zip(call.results, results, strict=True):
                found = result.detach()
                # A view of a divided parameter (positions, say) must outlast its memory.
                slots[slot] = found.clone() if lent and _memory(found) in lent else found
        for slot in action.dead_slots:
            slots[slot] = None
        self.store.wholes.drop(action.release)

    def backward(self, action: Backward) -> None:
        if action.call.backward:
            if action.phase == "W":
                self._weights_only(action.call)
            else:
                self._hand_back(action.call)
        self.store.wholes.drop(action.release)

    def _typed(self, call: Call, results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """With autocast, results have whatever type it chose; the program knows another."""
        if self.autocast is None:
            return results
        return tuple(r.to(t) for r, t in zip(results, call.dtypes, strict=True))

    def _hand_back(self, call: Call) -> None:
        store = self.store
        store.wholes.memory(call.weights)  # it is there
        saved = self.saved[call.number] if call.split_backward else self.saved.pop(call.number)
        leaves, weights, edges, ends = saved
        edges, seeds = self._seeds(edges, ends)
        weights = [] if call.split_backward else weights
        if call.split_backward:
            self._seeded[call.number] = edges, seeds
        if edges and (leaves or weights):
            keep = call.split_backward and bool(call.weights)
            found = self._gradients(call, edges, seeds, leaves, weights, keep=keep)
            for slot, gradient in zip(call.differentiable, found, strict=True):
                if gradient is not None:
                    store.add(slot, gradient)
        if not call.split_backward:
            self.parameters.release_weights(call, weights)

    def _weights_only(self, call: Call) -> None:
        """Gradients of parameters, after those of activations (or of none)."""
        _, weights, edges, ends = self.saved.pop(call.number)
        known = self._seeded.pop(call.number, None)
        edges, seeds = self._seeds(edges, ends) if known is None else known
        if edges:
            self._gradients(call, edges, seeds, [], weights)
        self.parameters.release_weights(call, weights)

    def _gradients(
        self, call: Call, edges: list[Any], seeds: list[Tensor], leaves: list[Tensor],
        weights: list[Tensor], *, keep: bool = False,
    ) -> Sequence[Tensor | None]:  # fmt: skip
        """Gradients of leaves; those of weights go to where they add up.

        Where several micro-batches add up, autograd does it weight by weight, so that no more than one
        gradient is there twice.
        """
        if not weights or self.adds_once:
            found = torch.autograd.grad(
                edges, [*leaves, *weights], seeds, allow_unused=True, retain_graph=keep
            )
            self.parameters.accumulate(call, found[len(leaves) :])
            return found[: len(leaves)]
        for slot, weight in zip(call.weights, weights, strict=True):
            weight.grad = self.parameters.accumulated_gradient(call, slot)
        torch.autograd.backward(edges, seeds, retain_graph=keep, inputs=[*leaves, *weights])
        for slot, weight in zip(call.weights, weights, strict=True):
            if weight.grad is not None:
                self.parameters.set_gradient(call, slot, weight.grad)
                weight.grad = None  # an update sets it where the parameter is updated
        return [leaf.grad for leaf in leaves]

    def _seeds(self, edges: Sequence[Any], ends: Sequence[int]) -> tuple[list[Any], list[Tensor]]:
        """The gradients that have come for what a segment gave."""
        chosen, seeds = [], []
        for edge, slot in zip(edges, ends, strict=True):
            gradient = self.store.take(slot)
            if gradient is not None:
                chosen.append(edge)
                seeds.append(gradient)
        return chosen, seeds


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
