"""Adds up memory of weight gradients of single micro-batches, and of old weights while steps overlap.

persistent.py counts the gradient that is summed over micro-batches, and the newest weights.
"""

from __future__ import annotations

import numpy as np

from raddle.program.program import Run, Update
from raddle.program.weight_versions import parameters_by_op
from raddle.simulation.memory.ledger import Array, Ledger


def record_contributions(ledger: Ledger) -> None:
    """Adds the weight gradients of each micro-batch: they are alive until they are added to the sum.

    The gradients of the first micro-batch of a step are the sum so far, so they do not count here. Of one
    operator's parameters only the largest counts.
    """
    program = ledger.program
    phase = "W" if program.plan.split_backward else "B"
    # By operator: the parameters that it reads, and the bytes of the largest of them.
    read, largest = parameters_by_op(program.graph), dict[str, Array]()
    for number, i in enumerate(program.instructions):
        if isinstance(i, Run) and i.phase == phase and i.key.micro_batch and read[i.op]:
            if i.op not in largest:
                largest[i.op] = np.max(
                    [ledger.parameter_bytes(name) for name in read[i.op]], axis=0
                )
            ledger.add_by_device(largest[i.op], *ledger.span(number))


def record_versions(ledger: Ledger) -> None:
    """Adds stashed weights: alive from the update that replaces them to the last run that uses them.

    Version v of a parameter has had v updates; update number v, counted from 0, replaces it. Run.versions
    has, for each parameter that the operator reads, the version that this run uses. If it is empty, the
    version is the number of the step, and no old weights are needed.
    """
    read = parameters_by_op(ledger.program.graph)
    # All times are arrays by device.
    last: dict[tuple[str, int], Array] = {}  # (parameter, version) -> the end of its last use
    replaced: dict[str, list[Array]] = {}  # parameter -> the start of each of its updates
    for number, i in enumerate(ledger.program.instructions):
        if isinstance(i, Update):
            replaced.setdefault(i.parameter, []).append(ledger.span(number).start)
        elif isinstance(i, Run) and i.versions:
            end = ledger.span(number).end
            for name, version in zip(read[i.op], i.versions, strict=True):
                earlier = last.get((name, version))
                last[name, version] = end if earlier is None else np.maximum(earlier, end)
    for (name, version), end in last.items():
        starts = replaced.get(name, [])
        if version < len(starts):  # else no update replaces this version
            ledger.add_by_device(ledger.parameter_bytes(name), starts[version], end)
