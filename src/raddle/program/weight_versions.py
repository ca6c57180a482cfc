"""Decides which version of the weights each run uses, where steps overlap (weight stashing).

Version v of a parameter is its value after v updates. A forward uses the version of the last update that
comes before it in the program or, with PipeDream-2BW (Narayanan et al., 2021), an older one: in step k,
version k - 1. Its backward uses the same version, and so do all uses of a parameter in one micro-batch. As
versions are part of the program, they are the same on all devices and in every run. So the plain module can
repeat a run with the same versions (verification/serial_replay.py).
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
    """Returns the instructions, with the versions of each run, and waits of forwards for their updates."""
    parameters = parameters_by_op(graph)
    delayed = ASYNCHRONOUS.get(plan.schedule) == "2bw"  # not the latest version, but k - 1
    # By parameter, the instruction that made its version 1, 2, ...: an update, or the pull after it.
    writers: dict[str, list[int]] = {}
    version_used: dict[tuple[str, int, int], int] = {}  # by parameter, step and micro-batch
    result: list[Instruction] = []
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
        result.append(i)
    return result


def parameters_by_op(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Returns, by operator, the parameters that it reads, in the order of `Run.versions`."""
    return {
        op.name: tuple(n for n in dict.fromkeys(op.inputs) if graph.values[n].role == "parameter")
        for op in graph.ops
    }
