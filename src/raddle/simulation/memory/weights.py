"""Memory of weight gradients of single micro-batches, and of old weights while steps overlap.

The gradient that sums over micro-batches, and the newest weights, are in persistent.py.
"""

from __future__ import annotations

import numpy as np

from raddle.program.program import Run, Update
from raddle.program.weight_versions import parameters_by_op
from raddle.simulation.memory.ledger import Array, Ledger


def record_contributions(ledger: Ledger) -> None:
    """Adds the weight gradients of each micro-batch, alive until they are added to the sum so far.

    They count from the second micro-batch of a step on. Of the parameters of one operator, only the largest
    counts.
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
    """Adds stashed weights: replaced by an update, alive until the last run that uses them.

    Version v of a parameter has had v updates; update number v, counted from 0, replaces it. Run.versions:
    by parameter that the operator reads, the version that this run uses; (): its version is the number of
    the step, and no old weights are needed.
    """
    read = parameters_by_op(ledger.program.graph)
    last: dict[tuple[str, int], Array] = {}  # parameter and version -> the end of its last use
    replaced: dict[str, list[Array]] = {}  # parameter -> by update, when it begins
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
