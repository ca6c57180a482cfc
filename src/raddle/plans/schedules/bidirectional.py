"""Bidirectional schedules: two replicas of the model pass the workers in opposite directions.

With P workers, stage s of the first replica is on worker s ("down"), of the second on worker P-1-s ("up").
"""

from __future__ import annotations

from raddle.errors import InputError
from raddle.plans.named_schedule import NamedSchedule
from raddle.plans.schedule import Action, Schedule

# s: stage, m: micro-batch, w: worker; P stages and workers. In the pictures, a line is a worker and time
# goes to the right; F1.2 is the forward of micro-batch 1 on stage 2.


def gems(stages: int, microbatches: int) -> Schedule:
    """Even micro-batches go from worker 0 to the last, odd ones from the last to worker 0.

    A forward follows directly behind the backward before it, so one micro-batch is in memory at a time.
    GEMS, Jain et al. 2020 (SC20); there it is MAST with two micro-batches, and MASTER with more.

    F0.0 .... .... .... .... B0.0 F1.2 B1.2 .... ....
    .... F0.1 .... .... B0.1 F1.1 .... .... B1.1 ....
    .... .... F0.2 B0.2 F1.0 .... .... .... .... B1.0

    Differs from the paper: an odd number of micro-batches ends with half a pair.
    """
    rows = []
    for w in range(stages):
        pairs = [(w if m % 2 == 0 else stages - 1 - w, m) for m in range(microbatches)]
        rows.append(tuple(Action(phase, s, m) for s, m in pairs for phase in "FB"))
    return Schedule(tuple(rows))


def gems_basic(stages: int, microbatches: int) -> Schedule:
    """GEMS without overlap: a forward waits until the backward of the micro-batch before it has ended.

    F0.0 .... .... B0.0 .... F1.1 B1.1 ....
    .... F0.1 B0.1 .... F1.0 .... .... B1.0

    Differs from the paper: the paper has one pair of micro-batches in a step, here there may be more.
    """
    overlapped = gems(stages, microbatches)
    waits = ((Action("F", 0, m), Action("B", 0, m - 1)) for m in range(1, microbatches))
    return Schedule(overlapped.rows, tuple(waits))


def chimera(stages: int, microbatches: int) -> Schedule:
    """Half of each P micro-batches go down the workers, half go up; the next P fill the bubbles.

    Chimera, Li & Hoefler 2021 (SC21, section 3, with direct concatenation).

    F0.0 F1.0 .... F2.3 B2.3 F3.3 B3.3 B0.0 .... B1.0
    .... F0.1 F2.2 F1.1 F3.2 B2.2 B0.1 B3.2 B1.1 ....
    .... F2.1 F0.2 F3.1 F1.2 B0.2 B2.1 B1.2 B3.1 ....
    F2.0 F3.0 .... F0.3 B0.3 F1.3 B1.3 B2.0 .... B3.0

    P is even. With durations 1, the i-th micro-batch of either direction runs stage s forward at time s+2i
    and backward at 2P-1-s+2i; a group of P starts 2P after the one before. The four kinds of actions of a
    worker w never collide: down F and up B are at times of w's parity, up F and down B at the others.

    Differs from the paper: the last group may have fewer than P micro-batches; if odd, one more goes down.
    """
    if stages % 2:
        raise InputError(
            f"chimera needs an even number of workers, got {stages}: use {stages + 1}, or 1f1b."
        )
    rows: list[list[tuple[int, Action]]] = [[] for _ in range(stages)]
    # first: the first micro-batch of a group; j: number of a micro-batch in its group; i: its number among
    # those of the group that go in its direction
    for first in range(0, microbatches, stages):
        size = min(stages, microbatches - first)
        down = (size + 1) // 2  # how many of the group go down
        for j in range(size):
            i = j if j < down else j - down
            start = 2 * first + 2 * i
            for s in range(stages):
                w = s if j < down else stages - 1 - s
                rows[w].append((start + s, Action("F", s, first + j)))
                rows[w].append((start + 2 * stages - 1 - s, Action("B", s, first + j)))
    return Schedule(tuple(tuple(action for _, action in sorted(row)) for row in rows))


NAMED = (
    NamedSchedule("gems", gems, "two mirrored replicas, one micro-batch alive: the least memory"),
    NamedSchedule("gems-basic", gems_basic, "the same without overlap"),
    NamedSchedule("chimera", chimera, "two mirrored replicas at the same time", even_stages=True),
)
