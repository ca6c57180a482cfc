"""Which weights are used where steps overlap.

A version is how many updates a parameter has had. A forward uses the latest that stands before it in the
program, or, with PipeDream-2BW (Narayanan et al., 2021), that of the step before; its backward uses the
same (weight stashing) unless the plan takes the latest there too. So which weights a run uses is part of
the program, the same on all devices, and a serial replay can use them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raddle.graph.graph import Graph
from raddle.plan.pipelining import keeps_weights
from raddle.plan.plan import Plan
from raddle.plan.schedules import ASYNCHRONOUS
from raddle.program.program import Instruction, Move, Run, Update


def with_versions(
    instructions: Sequence[Instruction], graph: Graph, plan: Plan
) -> list[Instruction]:
    """The same instructions; runs say which weights they use, and wait for the updates that gave them."""
    parameters = parameters_of(graph)
    delayed = ASYNCHRONOUS.get(plan.schedule) == "2bw"
    written: dict[str, list[int]] = {}  # by parameter, the instructions that gave its versions
    used: dict[tuple[str, int, int], tuple[int, ...]] = {}  # by operator, step and micro-batch
    out: list[Instruction] = []
    for number, i in enumerate(instructions):
        if isinstance(i, Update) or (isinstance(i, Move) and i.what == "pull"):
            name = i.parameter if isinstance(i, Update) else i.value
            if isinstance(i, Update):
                written.setdefault(name, []).append(number)
            else:
                written[name][-1] = number
        elif isinstance(i, Run) and parameters[i.op]:
            names, own = parameters[i.op], (i.op, i.key.step, i.key.micro)
            there = tuple(len(written.get(n, ())) for n in names)
            if delayed:
                there = tuple(min(v, max(0, i.key.step - 1)) for v in there)
            if i.phase == "F" or not keeps_weights(plan):
                used[own] = there
                waits = (written[n][v - 1] for n, v in zip(names, there, strict=True) if v)
                i = replace(i, deps=tuple(sorted({*i.deps, *waits})), versions=there)
            else:
                i = replace(i, versions=used[own])
        out.append(i)
    return out


def parameters_of(graph: Graph) -> dict[str, tuple[str, ...]]:
    """By operator, the parameters that it reads, in the order of `Run.versions`."""
    return {
        op.name: tuple(n for n in dict.fromkeys(op.inputs) if graph.values[n].role == "parameter")
        for op in graph.ops
    }
