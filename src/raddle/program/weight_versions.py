"""Which weights are used where steps overlap.

A version is how many updates a parameter has had. A forward uses the latest that stands before it in the
program, or, with PipeDream-2BW (Narayanan et al., 2021), that of the step before; its backward uses the
same (weight stashing). A micro-batch that uses a parameter several times uses one version of it. So which
weights a run uses is part of the program, the same on all devices, and a serial replay can use them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.schedules import ASYNCHRONOUS
from raddle.program.program import Instruction, Move, Run, Update


def with_versions(
    instructions: Sequence[Instruction], graph: Graph, plan: Plan
) -> list[Instruction]:
    """The same instructions; runs say which weights they use, and wait for the updates that gave them."""
    parameters = parameters_by_op(graph)
    delayed = ASYNCHRONOUS.get(plan.schedule) == "2bw"
    writers: dict[str, list[int]] = {}  # by parameter, the instructions that gave its versions
    version_used: dict[tuple[str, int, int], int] = {}  # by parameter, step and micro-batch
    out: list[Instruction] = []
    for number, i in enumerate(instructions):
        if isinstance(i, Update) or (isinstance(i, Move) and i.kind.is_pull):
            name = i.parameter if isinstance(i, Update) else i.value
            if isinstance(i, Update):
                writers.setdefault(name, []).append(number)
            else:
                writers[name][-1] = number
        elif isinstance(i, Run) and parameters[i.op]:
            names, micro_batch = parameters[i.op], (i.key.step, i.key.micro_batch)
            versions = []
            for name in names:
                latest = len(writers.get(name, ()))
                latest = min(latest, max(0, i.key.step - 1)) if delayed else latest
                versions.append(version_used.setdefault((name, *micro_batch), latest))
            i = replace(i, versions=tuple(versions))
            if i.phase == "F":
                waits = (writers[n][v - 1] for n, v in zip(names, versions, strict=True) if v)
                i = replace(i, deps=tuple(sorted({*i.deps, *waits})))
        out.append(i)
    return out


def parameters_by_op(graph: Graph) -> dict[str, tuple[str, ...]]:
    """By operator, the parameters that it reads, in the order of `Run.versions`."""
    return {
        op.name: tuple(n for n in dict.fromkeys(op.inputs) if graph.values[n].role == "parameter")
        for op in graph.ops
    }
