"""Measures raddle's Python overhead: a rank's step without torch's computations and without waiting.

Segments (operators of a device between two communications, run as one function) return constant results,
gradients are zeros, and messages arrive at once. The measured time is that of the Python code between
torch's calls, and of calls that only make views.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from raddle import zoo
from raddle.clusters import cluster
from raddle.graph.box import Box
from raddle.graph.capture import capture
from raddle.program.lower import lower
from raddle.runtime.actions import Forward
from raddle.runtime.execution import segments as running
from raddle.runtime.executor import Executor
from raddle.searches.planning import plan_for

STEPS = 200


class FinishedSend:
    """The handle of a message or collective that is complete at once."""

    def wait(self) -> None: ...


class ReceivedMessage:
    """The handle of a receive whose message is there at once."""

    def __init__(self, message: Tensor) -> None:
        self.message = message

    def wait(self) -> Tensor:
        return self.message


class InstantTransport:
    """A transport whose messages arrive at once: it sends nothing, and receives zeros.

    Its methods are those of raddle.transport.base.Transport.
    """

    early_receives = True

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.sent = rank, size, defaultdict[int, int](int)
        self.collective_bytes = defaultdict[tuple[str, tuple[int, ...]], int](int)

    def prepare(self, groups: Any, directions: Any = ()) -> None: ...
    def flush(self) -> None: ...

    def post(self, target: int, tag: int, buffer: Tensor, what: str = "") -> FinishedSend:
        return FinishedSend()

    def expect(
        self, source: int, tag: int, like: Tensor, elements: int, what: str = ""
    ) -> ReceivedMessage:
        return ReceivedMessage(like.new_zeros(elements))

    def all_reduce(self, ranks: Any, tag: int, buffer: Tensor, what: str = "") -> FinishedSend:
        return FinishedSend()

    def check(self) -> None: ...

    def broadcast(self, source: int, buffer: Tensor) -> FinishedSend:
        return FinishedSend()


def python_seconds(name: str, method: str, bn: str) -> tuple[float, int, int]:
    """Return the seconds of a step of rank 1 of 2, and its numbers of instructions and of actions."""
    work = zoo.load(name, device="cpu")
    graph = capture(work.model, work.batch, work.loss)
    program = lower(graph, plan_for(graph, cluster("local:2"), method, bn=bn))
    rank = Executor(program, InstantTransport(1, 2))  # type: ignore[arg-type]
    state = {**dict(work.model.named_parameters()), **dict(work.model.named_buffers())}

    def part(source: Any, tensors: Any) -> Tensor:
        return tensors[source.name].detach()[
            source.box.slices_within(Box.full(graph.values[source.name].shape))
        ]

    rank.load(lambda s: part(s, state).clone())
    given = dict(zip(graph.inputs, work.batch, strict=True))
    fed = {s: part(s, given) for s in rank.rank_actions.sources_with_role("input")}
    rank.run(lambda s: fed[s], 0)
    _take_out_torch(rank)
    rank.run(lambda s: fed[s], 0)
    best = float("inf")
    for _ in range(STEPS):
        start = time.perf_counter()
        rank.run(lambda s: fed[s], 0)
        best = min(best, time.perf_counter() - start)
    return best, len(program.instructions_of(1)), len(rank.rank_actions.actions)


def _take_out_torch(rank: Executor) -> None:
    """Replace the rank's computations by functions that return constants; see the top of the file."""
    for action in rank.rank_actions.actions:
        if isinstance(action, Forward):
            call = action.call
            results = tuple(torch.zeros(rank.rank_actions.shapes[s]) for s in call.results)
            for r in results:
                r.requires_grad_(call.backward)
            call.code = call.code._replace(function=lambda *a, results=results: results)
    running.get_gradient_edge = lambda tensor: tensor  # type: ignore[assignment]
    zeros: dict[tuple[int, ...], Tensor] = {}

    def gradients(edges: Any, inputs: Any, seeds: Any, **more: Any) -> Any:
        return [zeros.setdefault(tuple(t.shape), torch.zeros(t.shape)) for t in inputs]

    running.torch.autograd.grad = gradients  # type: ignore[assignment]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(
        f"{'model':16} {'method':8} {'bn':7} {'own µs a step':>14} {'instructions':>12} {'µs each':>8} "
        f"{'actions':>8} {'µs each':>8}"
    )
    for model, method, bn in [
        ("vgg16-tiny", "data", "local"),
        ("vgg16-tiny", "owt", "local"),
        ("resnet50-tiny", "data", "local"),
        ("resnet50-tiny", "data", "global"),
        ("resnet50-tiny", "spatial", "global"),
        ("gpt-tiny", "data", "local"),
        ("gpt-tiny", "model", "local"),
    ]:
        originals = running.torch.autograd.grad, running.get_gradient_edge
        seconds, count, actions = python_seconds(model, method, bn)
        running.torch.autograd.grad, running.get_gradient_edge = originals
        microseconds = 1e6 * seconds
        print(
            f"{model:16} {method:8} {bn:7} {microseconds:14.0f} {count:12} {microseconds / count:8.1f} "
            f"{actions:8} {microseconds / actions:8.1f}"
        )
