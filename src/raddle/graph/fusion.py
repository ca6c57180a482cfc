"""Derives what torch.compile fuses: which operands and results of an operator pass through memory.

torch.compile (inductor) computes a chain of pointwise operators, norms and sums in one kernel, which reads
what comes from outside and writes what is read outside. Products, convolutions, attention and opaque
operators are kernels of their own. So is a sum over samples, as the statistics of a batch norm: what reads
it waits for all of it. A *group* is operators of one kernel:

    linear | dropout  add  moments  layer_norm | linear
    level 0       1    1         1           1       1

A level counts the kernels of other groups that have to end before. Two operators are in a group if one
reads the other's result point by point, and no such kernel lies between them. In the backward, values
inside of a group are computed again from its operands, and gradients inside of it stay in the kernel.

The groups follow from the graph alone. Where a plan sends a value between two operators of a group, or cuts
a repeated block there (program/segments.py), the value passes through memory all the same: a cut costs one
more write and read than is counted.
"""

from __future__ import annotations

from typing import NamedTuple

from raddle.graph.gradients import active_values, operands_with_gradient
from raddle.graph.graph import Graph, Op


class FusedOp(NamedTuple):
    """How often each operand, then each output, of an operator passes through memory."""

    starts_kernel: bool  # the first operator of its group: the kernel's launch counts for it
    forward: tuple[int, ...]
    # By operand: the same while its gradient is computed, which counts for its own number; () without one.
    backward: tuple[tuple[int, ...], ...]

    def passes(self, operand: int | None) -> tuple[int, ...]:
        """Returns the numbers of the forward (None), or while the gradient of an operand is computed."""
        return self.forward if operand is None else self.backward[operand] or self.forward

    def launches(self, operand: int | None) -> bool:
        """Returns whether a kernel starts with the forward (None), or with the gradient of an operand."""
        first = next((i for i, passes in enumerate(self.backward) if passes), None)
        return self.starts_kernel and operand in (None, first)


def fused_ops(graph: Graph) -> dict[str, FusedOp]:
    """Returns by operator what of it passes through memory if torch.compile compiles the graph.

    >>> import raddle, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Tanh())
    >>> loss = raddle.supervised(torch.nn.functional.mse_loss)
    >>> graph = raddle.capture(model, (torch.randn(8, 4), torch.randn(8, 4)), loss)
    >>> fused = fused_ops(graph)
    >>> [fused[name].forward for name in ("0", "1", "2")]  # relu only reads, tanh neither
    [(1, 1, 1, 1), (1, 0), (0, 0)]
    """
    if not graph.fused_operators:
        graph.fused_operators.update(_derive(graph))
    return graph.fused_operators


def _derive(graph: Graph) -> dict[str, FusedOp]:
    """Returns the result of `fused_ops`."""
    groups = _Groups(graph)
    active = active_values(graph)
    seen: set[tuple[str, str]] = set()  # (group, value): operands that a kernel reads already
    started: set[str] = set()
    result = dict[str, FusedOp]()
    for op in graph.ops:
        if op.name not in groups.group:
            whole = (1,) * (len(op.inputs) + len(op.outputs))
            result[op.name] = FusedOp(True, whole, (whole,) * len(op.inputs))
            continue
        group = groups.group[op.name]
        reads = [groups.reads(op, name) and (group, name) not in seen for name in op.inputs]
        seen.update((group, name) for name in op.inputs)
        writes = [groups.leaves(name) for name in op.outputs]
        forward = tuple(map(int, (*reads, *writes)))
        backward: list[tuple[int, ...]] = [()] * len(op.inputs)
        first = True
        for i in operands_with_gradient(op, active):
            passes = list(forward) if first else [0] * len(forward)
            passes[i] += groups.reads(op, op.inputs[i])  # the gradient
            backward[i], first = tuple(passes), False
        result[op.name] = FusedOp(group not in started, forward, tuple(backward))
        started.add(group)
    return result


class _Groups:
    """The groups of a graph; `group` has by operator the name of its group, one of its operators."""

    def __init__(self, graph: Graph) -> None:
        self.producer = {o: op for op in graph.ops for o in op.outputs}
        self.level: dict[str, int] = {}  # by operator
        self.group: dict[str, str] = {}
        self.outside = {*graph.outputs, *graph.updates.values()}  # values that leave their group
        for op in graph.ops:
            self._add(op)
        for op in graph.ops:
            if not op.traits.is_view:
                self.outside.update(self.base(name) for name in op.inputs if self.reads(op, name))

    def _add(self, op: Op) -> None:
        """Gives an operator its level, and a group if it can be fused."""
        producers = [
            self.producer[base] for n in op.inputs if (base := self.base(n)) in self.producer
        ]
        self.level[op.name] = max(
            (self.level[p.name] + _ends_kernel(p) for p in producers), default=0
        )
        if not _can_be_fused(op):
            return
        joined = {self.group[p.name] for p in producers if self._is_joined(p, op)}
        self.group[op.name] = min(joined, default=op.name)
        if len(joined) > 1:
            for name, group in self.group.items():
                if group in joined:
                    self.group[name] = self.group[op.name]

    def base(self, value: str) -> str:
        """Returns the value that a view views, through several views."""
        while (op := self.producer.get(value)) is not None and op.traits.is_view:
            value = op.inputs[0]
        return value

    def _is_joined(self, producer: Op, reader: Op) -> bool:
        """Returns whether a reader and the producer of what it reads are in one group."""
        return (
            producer.name in self.group
            and not _ends_kernel(producer)
            and self.level[producer.name] == self.level[reader.name]
            and all(
                index.plain_dim is not None
                for name, access in zip(reader.inputs, reader.space.operands, strict=True)
                if self.base(name) in producer.outputs
                for index in access.indices
            )
        )

    def reads(self, op: Op, value: str) -> bool:
        """Returns whether an operator reads a value from memory."""
        producer = self.producer.get(self.base(value))
        return producer is None or op.name not in self.group or not self._is_joined(producer, op)

    def leaves(self, value: str) -> bool:
        """Returns whether a value is read outside of its group."""
        return value in self.outside


def _can_be_fused(op: Op) -> bool:
    """Returns whether torch.compile generates the kernel of an operator, together with others."""
    return not (op.space.is_product or op.opaque or op.traits.family or op.traits.is_view)


def _ends_kernel(op: Op) -> bool:
    """Returns whether an operator's results can only be read when its kernel has ended."""
    if op.traits.is_view:
        return False
    sums_samples = any(op.space.dims[d].name == "n" for d in op.space.reduced_dims)
    return not _can_be_fused(op) or sums_samples
