"""One rank: carries out its actions step by step.

Forward and backward are explicit. Every segment runs on leaves of its own, so gradients are handed on along
the program's edges and nowhere else. Three rules keep numbers right:

- a buffer that a message arrives in belongs to the executor: transports write without telling autograd;
- what autograd returns may share memory with something else: it is copied before it is changed;
- nothing is ever changed in place that a segment may have kept.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.dtypes import settled
from raddle.plans.pipelining import is_asynchronous, is_greedy, threads_of
from raddle.program.messages import Content
from raddle.program.program import Program
from raddle.runtime.actions import (
    Action,
    Arrive,
    Backward,
    Bucket,
    Call,
    Feed,
    Forward,
    Give,
    Keep,
    Leave,
    Note,
    Receive,
    Send,
    Step,
    Sum,
    key_of,
)
from raddle.runtime.agreeing import Agreeing
from raddle.runtime.delivery import Part
from raddle.runtime.entering import enter
from raddle.runtime.greedy import carry_out_greedily
from raddle.runtime.posting import Posting
from raddle.runtime.settle import settle
from raddle.runtime.settling.pieces import Source
from raddle.runtime.weights import Weights
from raddle.runtime.wholes import Wholes
from raddle.transport.base import Arriving, Pending, Transport, Widened

Feeding = Callable[[Source], Tensor]  # the part of the batch that a source stands for


class Executor:
    """The slots of one rank and what is under way in a step."""

    def __init__(
        self,
        program: Program,
        transport: Transport,
        *,
        place: torch.device | str = "cpu",
        seed: int = 0,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.place, self.seed, self.autocast = torch.device(place), seed, autocast
        self.program, self.transport = program, transport
        self.plan = settle(program, transport.rank, self.place)
        self.steps = self.plan.by_step() if is_greedy(program.plan) else {0: self.plan.actions}
        self.postings = {
            step: Posting([a for a in actions if isinstance(a, Receive)], self._post)
            for step, actions in self.steps.items()
        }
        self.turn = threading.Lock()  # where steps have threads of their own
        self.slots: list[Any] = [None] * self.plan.slots
        self.grads: list[Tensor | None] = [None] * self.plan.slots
        self.owned: set[int] = set()  # gradients that no one else sees
        self.given: set[int] = set()  # parameters with a gradient in this step
        # By call: leaves and weights that it ran on, ends of its graph, and the slots of its results.
        self.saved: dict[int, tuple[list[Tensor], list[Tensor], list[Any], list[int]]] = {}
        self.read: dict[int, list[Any]] = {}  # by calls that run again
        self.seeds: dict[int, tuple[list[Any], list[Tensor]]] = {}
        self.posted: dict[int, Arriving] = {}
        self.likes: dict[torch.dtype, Tensor] = {}  # of each type, something on this rank's device
        self.feeding: Feeding = lambda source: torch.empty(0)
        self.sending: dict[int, Pending] = {}  # by the number of the send
        self.summing: list[Pending] = []
        self.bucket_of: dict[int, Tensor] = {}  # parameter -> its place in a bucket
        self.flat: list[Tensor] = []
        if not is_asynchronous(program.plan):
            self.flat = [
                torch.zeros(b.elements, dtype=b.dtype, device=self.place) for b in self.plan.buckets
            ]
        self.weights = Weights() if is_asynchronous(program.plan) else None
        self.count = program.plan.steps if self.weights is not None else 1  # steps of a run
        self.agreeing: Agreeing | None = None  # made when parameters are there
        self.wholes = Wholes(self.plan.wholes, self.slots)
        self.losses: list[tuple[int, Tensor]] = []  # of micro-batches, with their step
        self.at = 0  # the number of the first step of a run
        self.adds_once = program.plan.microbatches == 1  # to the gradients of a step
        places = {v.loss_devices for v in program.variants}
        self.tellers = sorted({devices[0] for devices in places})  # to those that lack the loss
        self.known = all(len(devices) == transport.size for devices in places)
        self.telling: list[tuple[Pending, Tensor]] = []
        self.weight = 1.0
        self.update: Callable[[], None] = lambda: None
        self.updating = True
        self.record: Callable[[Action, float, float], None] | None = None
        self._do: dict[type, Callable[[Any], None]] = {
            Feed: (lambda action: None) if self.place.type == "cpu" else self._feed,
            Forward: self._forward,
            Backward: self._backward,
            Send: self._send,
            Receive: self._receive,
            Arrive: self._arrive,
            Sum: self._sum,
            Give: self._give,
            Leave: self._leave,
            Keep: self._keep,
            Note: self._note,
            Step: self._update,
        }
        transport.prepare(self.plan.groups, self.plan.links)

    # -- what lasts ----------------------------------------------------------------------------------

    def load(self, tensor_of: Callable[[Source], Tensor]) -> None:
        """Fills the slots of parameters, buffers and constants."""
        for source in self.plan.sources:
            if source.role in ("input", "seed"):
                continue
            if source.role == "whole":
                self.wholes.make(source.slot, self.place)
                continue
            if source.role == "constant":
                tensor = self.program.graph.constants[source.name].to(self.place)
            else:
                tensor = tensor_of(source).to(self.place)
            if source.role == "parameter":
                tensor = torch.nn.Parameter(tensor.detach())
            self.slots[source.slot] = tensor
        if self.plan.slices and self.agreeing is None:
            sync = self.program.plan.syncing
            self.agreeing = Agreeing(
                self.plan.slices, self.slots, self.transport, sync, self.place, self.plan.order
            )
        if self.weights is not None:
            return
        for bucket, flat in zip(self.plan.buckets, self.flat, strict=True):
            at = 0
            for slot in bucket.slots:
                size = self.slots[slot].numel()
                self.bucket_of[slot] = flat[at : at + size].view(self.slots[slot].shape)
                at += size

    def parameters(self) -> list[tuple[Source, torch.nn.Parameter]]:
        return [(s, self.slots[s.slot]) for s in self.plan.of("parameter")]

    def updated(self) -> list[tuple[Source, torch.nn.Parameter]]:
        """What an optimizer on this rank updates."""
        if self.agreeing is not None:
            return self.agreeing.updated
        own = {s.slot: (s, p) for s, p in self.parameters()}
        return [own[slot] for slot in self.plan.updated]

    def synchronize(self) -> None:
        """All parameters are as the last step leaves them, and nothing is under way."""
        if self.agreeing is not None:
            self.agreeing.synchronize()

    def close(self) -> None:
        """Ends the threads that carry slices; what is under way is lost."""
        if self.agreeing is not None:
            self.agreeing.close()

    # -- a step ---------------------------------------------------------------------------------------

    def run(self, feed: Feeding, step: int, *, update: bool = True, weight: float = 1.0) -> Tensor:
        """One step; the loss, on every rank. Without `update`, gradients stay and add up."""
        return self.run_steps(feed, step, update=update, weight=weight)[0]

    def run_steps(
        self, feed: Feeding, step: int, *, update: bool = True, weight: float = 1.0
    ) -> Tensor:
        """The losses of all steps that the program overlaps, on every rank; else of one step."""
        self.feeding, self.at, self.weight, self.updating = feed, step, weight, update
        self.losses, self.telling = [], []
        if self.agreeing is not None and update:
            self.agreeing.begin()
        for posting in self.postings.values():
            posting.begin()
        if self.weights is not None:  # versions count from the first step of a run
            self.weights = Weights(latest=is_greedy(self.program.plan))
        if self.transport.early and self._tells_early and self.transport.rank != self.tellers[0]:
            self._tell()
        self._feed_early()
        self._carry_out()
        for pending in self.sending.values():
            pending.wait()
        self.sending.clear()
        losses = self.loss()
        self.transport.check()
        return losses

    @property
    def _tells_early(self) -> bool:
        """One rank has all of the loss: it tells it while others still work."""
        return not self.known and len(self.tellers) == 1

    def loss(self) -> Tensor:
        """By step: told by the ranks that have it, as soon as they have it."""
        if not self.telling:
            self._tell()
        for pending, _ in self.telling:
            pending.wait()
        parts = [part for _, part in self.telling]
        return torch.stack(parts).sum(0) if parts else self._own_loss()

    def _own_loss(self) -> Tensor:
        dtype = self.program.graph.values[self.program.graph.loss or ""].dtype
        total = torch.zeros(self.count, dtype=dtype, device=self.place)
        for step, loss in self.losses:
            total[step] += loss
        return total

    def _tell(self) -> None:
        """Replicas may end on several ranks: each tells what it has."""
        if self.known:
            return
        for teller in self.tellers:
            part = self._own_loss()
            self.telling.append((self.transport.broadcast(teller, part), part))

    def _feed_early(self) -> None:
        """On the CPU, parts of a batch are views: they are taken at once, before anybody waits."""
        if self.place.type == "cpu":
            for action in self.plan.actions:
                if isinstance(action, Feed):
                    self._feed(action)

    def _feed(self, action: Feed) -> None:
        source = action.source
        if source.role == "input":
            self.slots[source.slot] = self.feeding(source)
        else:
            step = self.at + action.key.step
            number = self.seed + 1_000_003 * step + action.key.micro
            self.slots[source.slot] = torch.tensor(number, device=self.place)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.autocast is None:
            return nullcontext()
        # What a cache keeps of weights would outlast them where they are divided.
        cached = not self.plan.wholes
        return torch.autocast(self.place.type, dtype=self.autocast, cache_enabled=cached)

    def _carry_out(self) -> None:
        if not is_greedy(self.program.plan):
            self._carry(self.plan.actions)
            return
        if not self.transport.early:
            raise InputError(
                f"the schedule '{self.program.plan.schedule}' lets messages overtake each other, which "
                "NCCL does not: use --backend gloo, or a schedule in a fixed order."
            )
        steps = [self.steps[step] for step in sorted(self.steps)]
        carry_out_greedily(steps, threads_of(self.program.plan), self._carry, self.transport.fail)

    def _carry(self, actions: Sequence[Action]) -> None:
        """Carries out actions in their order; lets others have their turn while it waits."""
        do, record = self._do, self.record
        with self.turn, self._precision():
            if actions and self.transport.early:
                self._posting(key_of(actions[0]).step).ahead()
            for action in actions:
                start = time.perf_counter()
                do[type(action)](action)
                if record is not None:
                    record(action, start, time.perf_counter())
            if actions and self.weights is not None:
                self.weights.end(key_of(actions[0]).step)

    def _posting(self, step: int) -> Posting:
        return self.postings[step if len(self.postings) > 1 else 0]

    def _wait(self, message: Arriving) -> Tensor:
        """Waits for a message; meanwhile other steps may compute."""
        if len(self.postings) == 1:
            return message.wait()
        self.turn.release()
        try:
            return message.wait()
        finally:
            self.turn.acquire()

    # -- segments ---------------------------------------------------------------------------------------

    def _forward(self, action: Forward) -> None:
        call, slots = action.call, self.slots
        if self.agreeing is not None and call.weights:
            self.agreeing.wait(call.weights)
        graph = call.backward and (action.again or not call.recompute)
        entered: list[Any] = [slots[s] for s in call.graded]
        leaves: list[Tensor] = []
        plain = [slots[s] for s in call.plain]
        if self.weights is None or action.again:
            weights = [slots[s] for s in call.weights]
        else:
            weights = self.weights.use(slots, action)
        if call.recompute and not action.again:
            self.read[call.number] = [*weights, *plain]
        elif call.recompute:  # buffers have new values by now: it reads them as they were
            rest = self.read.pop(call.number)
            weights, plain = rest[: len(weights)], rest[len(weights) :]
        rest = [*weights, *plain]
        lent = self.wholes.memory(call.weights)
        if graph:
            pairs = [enter(value) for value in entered]
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
        if not action.again:
            for slot, result in zip(call.results, results, strict=True):
                found = result.detach()
                # A view of a divided parameter (positions, say) must outlast its memory.
                slots[slot] = found.clone() if lent and _memory(found) in lent else found
        for slot in action.drop:
            slots[slot] = None
        self.wholes.drop(action.lay_down)

    def _typed(self, call: Call, results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """With autocast, results have whatever type it chose; the program knows another."""
        if self.autocast is None:
            return results
        return tuple(r.to(t) for r, t in zip(results, call.dtypes, strict=True))

    def _backward(self, action: Backward) -> None:
        if action.call.backward:
            if action.phase == "W":
                self._weights_only(action.call)
            else:
                self._hand_back(action.call)
        self.wholes.drop(action.lay_down)

    def _hand_back(self, call: Call) -> None:
        self.wholes.memory(call.weights)  # it is there
        saved = self.saved[call.number] if call.split else self.saved.pop(call.number)
        leaves, weights, edges, ends = saved
        edges, seeds = self._seeds(edges, ends)
        weights = [] if call.split else weights
        if call.split:
            self.seeds[call.number] = edges, seeds
        if edges and (leaves or weights):
            keep = call.split and bool(call.weights)
            for slot, gradient in zip(
                call.graded,
                self._gradients(call, edges, seeds, leaves, weights, keep=keep),
                strict=True,
            ):
                if gradient is not None:
                    self._add(slot, gradient)
        if self.weights is not None and not call.split:
            self.weights.used(self.slots, call, weights)

    def _weights_only(self, call: Call) -> None:
        """Gradients of parameters, after those of activations (or of none)."""
        _, weights, edges, ends = self.saved.pop(call.number)
        known = self.seeds.pop(call.number, None)
        edges, seeds = self._seeds(edges, ends) if known is None else known
        if edges:
            self._gradients(call, edges, seeds, [], weights)
        if self.weights is not None:
            self.weights.used(self.slots, call, weights)

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
            self._accumulate(call, found[len(leaves) :])
            return found[: len(leaves)]
        for slot, weight in zip(call.weights, weights, strict=True):
            weight.grad = self._sum_so_far(call, slot)
        torch.autograd.backward(edges, seeds, retain_graph=keep, inputs=[*leaves, *weights])
        for slot, weight in zip(call.weights, weights, strict=True):
            if weight.grad is None:
                continue
            if self.weights is not None:
                self.weights.grads[call.key.step, slot] = weight.grad
            else:
                self.grads[slot] = weight.grad
                self.owned.add(slot)
                self.given.add(slot)
            weight.grad = None  # an update sets it where the parameter is updated
        return [leaf.grad for leaf in leaves]

    def _sum_so_far(self, call: Call, slot: int) -> Tensor | None:
        if self.weights is not None:
            return self.weights.grads.get((call.key.step, slot))
        place = self.bucket_of.get(slot)
        if place is not None and slot not in self.given:
            place.zero_()
        return self.grads[slot] if place is None else place

    def _seeds(self, edges: Sequence[Any], ends: Sequence[int]) -> tuple[list[Any], list[Tensor]]:
        """The gradients that have come for what a segment gave."""
        chosen, seeds = [], []
        for edge, slot in zip(edges, ends, strict=True):
            gradient, self.grads[slot] = self.grads[slot], None
            self.owned.discard(slot)
            if gradient is not None:
                chosen.append(edge)
                seeds.append(gradient)
        return chosen, seeds

    def _add(self, slot: int, gradient: Tensor) -> None:
        known = self.grads[slot]
        if known is None:
            self.grads[slot] = gradient
        elif slot in self.owned:
            known += gradient
        else:
            self.grads[slot] = known + gradient
            self.owned.add(slot)

    def _accumulate(self, call: Call, found: Sequence[Tensor | None]) -> None:
        for slot, gradient in zip(call.weights, found, strict=False):
            if gradient is None:
                continue
            if self.weights is not None:
                self.weights.add(call.key.step, slot, gradient)
                continue
            place = self.bucket_of.get(slot)
            if place is None:
                self._add(slot, gradient)
            elif slot in self.given:
                place += gradient
            else:
                place.copy_(gradient)
                self.grads[slot] = place
                self.owned.add(slot)
            self.given.add(slot)

    # -- messages ---------------------------------------------------------------------------------------

    def _send(self, action: Send) -> None:
        if self._skips(action):
            return
        source = self.slots if action.what.content == Content.VALUE else self.grads
        tensors = [self._part(part, source, action.dtype) for part in action.parts]
        if not tensors:  # a signal
            buffer = torch.zeros(1, dtype=action.dtype, device=self.place)
        elif len(tensors) == 1:
            buffer = settled(tensors[0].detach()).contiguous().view(-1)
            if action.what.pulls and not action.delivery.gathers:
                buffer = buffer.clone()  # parameters change in place
        else:
            buffer = torch.cat([t.detach().reshape(-1) for t in tensors])
        pending = self.transport.post(action.peer, action.tag, buffer, action.label)
        self.sending[action.number] = pending  # which keeps the buffer
        if action.what.content == Content.GRADIENT:
            for part in action.parts:
                for slot in part.slots:
                    self._forget(slot)
        for slot in action.drop:
            self.slots[slot] = None

    def _skips(self, message: Send | Receive) -> bool:
        """Whether parameters stay as they are in this step, and nobody sends them."""
        return message.what.of_parameters and not message.delivery.gathers and not self.updating

    def _part(self, part: Part, source: list[Any], dtype: torch.dtype) -> Tensor:
        tensors = [source[s] for s in part.slots]
        if any(t is None for t in tensors):  # nobody gave a gradient
            tensors = [
                self._zeros(s, dtype) if t is None else t
                for s, t in zip(part.slots, tensors, strict=True)
            ]
        return tensors[0] if part.make is None else part.make(*tensors)

    def _zeros(self, slot: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self.plan.shapes[slot], dtype=dtype, device=self.place)

    def _forget(self, slot: int) -> None:
        self.grads[slot] = None
        self.owned.discard(slot)
        self.given.discard(slot)

    def _post(self, receive: Receive) -> None:
        if self._skips(receive):
            return
        like = self.likes.setdefault(
            receive.dtype, torch.empty(0, dtype=receive.dtype, device=self.place)
        )
        self.posted[receive.number] = self.transport.expect(
            receive.peer, receive.tag, like, receive.elements, receive.label
        )

    def _receive(self, receive: Receive) -> None:
        if self.transport.early:
            self._posting(receive.key.step).reach(receive)
        else:
            self._post(receive)

    def _arrive(self, action: Arrive) -> None:
        receive = action.receive
        found = self.posted.pop(receive.number, None)
        if found is None:  # gradients stay where they are until the update
            return
        buffer = self._wait(found)
        for number in action.answers:  # what this answers has arrived
            if number in self.sending:
                self.sending.pop(number).wait()
        if self.transport.early:
            self._posting(receive.key.step).arrived(receive)
        if not receive.parts:
            pass
        elif len(receive.parts) == 1:
            self._take(receive, receive.parts[0], buffer.view(receive.parts[0].shape))
        else:
            sizes = [math.prod(part.shape) for part in receive.parts]
            pieces = torch.split(buffer, sizes)
            for part, piece in zip(receive.parts, pieces, strict=True):
                self._take(receive, part, piece.view(part.shape))
        for slot in action.drop:
            self.slots[slot] = None

    def _take(self, receive: Receive, part: Part, tensor: Tensor) -> None:
        if receive.what.forward:
            self.slots[part.slots[0]] = tensor
            return
        for slot, (place, region) in zip(part.slots, part.places, strict=True):
            if receive.delivery.gathers:
                self.wholes.open(slot)[place] = tensor[region]
                continue
            if receive.what.pulls:
                with torch.no_grad():
                    self.slots[slot][place] = tensor[region]
                continue
            self._add_box(slot, place, tensor[region])
            if receive.what.pushes:
                self.given.add(slot)

    def _add_box(self, slot: int, place: tuple[slice, ...], tensor: Tensor) -> None:
        """A gradient of a part of what a slot held comes back."""
        shape, known = self.plan.shapes[slot], self.grads[slot]
        if known is None and tensor.shape == shape:
            self.grads[slot] = tensor
            return
        if known is None:
            known = torch.zeros(shape, dtype=tensor.dtype, device=self.place)
        elif slot not in self.owned:
            known = known.clone()
        known[place] += tensor
        self.grads[slot] = known
        self.owned.add(slot)

    # -- the ends of a step --------------------------------------------------------------------------------

    def _keep(self, action: Keep) -> None:
        slots = self.slots
        for buffer, slot in action.whole:
            slots[buffer] = slots[slot]
        for buffer, pieces in action.pieces:
            fresh = slots[buffer].clone()
            for box, slot in pieces:
                fresh[box.within(_full(fresh))] = slots[slot]
            slots[buffer] = fresh
        for slot in action.drop:
            self.slots[slot] = None

    def _note(self, action: Note) -> None:
        sizes = self.program.sizes
        share = self.weight * sizes[action.key.micro] / sum(sizes)
        loss = self.slots[action.slot]
        if action.counts or self.known:
            self.losses.append((action.key.step, loss.detach() * share))
        if action.seeds:
            self.grads[action.slot] = torch.full_like(loss, share)
        all_there = len(self.losses) == self.program.plan.microbatches * self.count
        if self.transport.early and self._tells_early and action.counts and all_there:
            self._tell()
        for slot in action.drop:
            self.slots[slot] = None

    def _sum(self, action: Sum) -> None:
        if not self.updating:
            return
        bucket = self.plan.buckets[action.bucket]
        if self.weights is not None:
            self._sum_of_step(action, bucket)
            return
        flat = self.flat[action.bucket]
        for slot in bucket.slots:
            if slot not in self.given:
                self.bucket_of[slot].zero_()
                self.grads[slot] = self.bucket_of[slot]
                self.given.add(slot)
        self.summing.append(self._all_reduce(bucket, action, flat))

    def _all_reduce(self, bucket: Bucket, action: Sum, flat: Tensor) -> Pending:
        narrow = self.program.plan.syncing.compressed
        if not narrow:
            return self.transport.all_reduce(bucket.devices, action.tag, flat, action.label)
        sent = flat.to(getattr(torch, narrow))
        return Widened(
            self.transport.all_reduce(bucket.devices, action.tag, sent, action.label), sent, flat
        )

    def _give(self, action: Give) -> None:
        if not self.updating:
            return
        assert self.agreeing is not None
        for slot in action.slots:
            gradient = self.grads[slot]
            if gradient is None:
                gradient = torch.zeros_like(self.slots[slot])
            self.agreeing.give(slot, gradient)
            self._forget(slot)

    def _leave(self, action: Leave) -> None:
        if self.updating:
            assert self.agreeing is not None
            self.agreeing.leave(action.number)

    def _sum_of_step(self, action: Sum, bucket: Bucket) -> None:
        """Where steps overlap, each has its own sums."""
        assert self.weights is not None
        step = action.key.step
        found = [self.weights.take(step, s, self.slots[s]) for s in bucket.slots]
        flat = torch.cat([t.reshape(-1) for t in found])
        pending = self._all_reduce(bucket, action, flat)
        pieces = torch.split(flat, [t.numel() for t in found])
        for slot, piece, tensor in zip(bucket.slots, pieces, found, strict=True):
            self.weights.sums[step, slot] = pending, piece.view(tensor.shape)

    def _update_some(self, action: Step) -> None:
        """Where steps overlap: the parameters whose gradients of a step are complete."""
        assert self.weights is not None
        parameters = [self.slots[s] for s in action.slots]
        gradients = [
            self.weights.take(action.key.step, s, p)
            for s, p in zip(action.slots, parameters, strict=True)
        ]
        self.weights.make_room(action, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.update()
        for parameter in parameters:
            parameter.grad = None

    def _update(self, action: Step) -> None:
        if self.weights is not None:
            self._update_some(action)
            return
        if not self.updating:
            return
        if self.agreeing is not None:
            self.agreeing.finish(self.update)
            return
        for pending in self.summing:
            pending.wait()
        self.summing.clear()
        for slot in self.plan.updated:
            if slot not in self.given:  # of a share that no operator read
                self.grads[slot] = torch.zeros_like(self.slots[slot])
            self.slots[slot].grad = self.grads[slot]
        self.update()
        for slot in self.plan.updated:
            self.slots[slot].grad = None
            self._forget(slot)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _full(tensor: Tensor) -> Box:
    return Box.full(tensor.shape)
