"""Zero bubble: the backward is split, and W, the gradients of parameters, fills the bubbles.

Nothing waits for a W, so it can be delayed. Qi et al. (arXiv 2401.10241, section 2), the two schedules made
by hand. Both are 1F1B with two numbers for each worker: how many forwards it starts with, and by how many
micro-batches W lags behind B. Their sum is the same on all workers, and so is the number of micro-batches
in memory.
"""

from __future__ import annotations

from raddle.plans.named_schedule import NamedSchedule
from raddle.plans.schedule import Action, Schedule

# s: stage, m: micro-batch; P stages and workers, M micro-batches. In the pictures, a line is a worker and
# time goes to the right; F1 is the forward of micro-batch 1.


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """If F, B and W take the same time, a third of the bubble of 1F1B, with P micro-batches in memory.

    F0 F1 F2 .. .. B0 W0 F3 B1 W1 B2 W2 B3 W3
    .. F0 F1 .. B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
    .. .. F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3

    Differs from the paper: its idle time (P-1)(F + B - W) needs W <= F and W <= B; in general it is
    (P-1) max(F, B, F + B - W).
    """
    return Schedule(
        tuple(_row(s, microbatches, ahead=stages - s, lag=s) for s in range(stages)),
    )


def zb_h2(stages: int, microbatches: int) -> Schedule:
    """No worker idles between its first and its last action, with 2P - 1 micro-batches in memory.

    F0 F1 F2 F3 F4 B0 W0 B1 W1 B2 W2 B3 W3 B4 W4 .. ..
    .. F0 F1 F2 B0 F3 B1 F4 B2 W0 B3 W1 B4 W2 W3 W4 ..
    .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 W1 W2 W3 W4

    Differs from the paper: workers still update together at the end of a step. So a step idles as long as
    with ZB-H1, but at its ends. The paper's idle time (P-1)(F + B - 2W) is that of workers that do not
    wait for each other at the update, and needs F = B >= W. With M < 2P - 1 some bubbles remain, and ZB-H1
    can be shorter.
    """
    return Schedule(
        tuple(_row(s, microbatches, ahead=2 * (stages - s) - 1, lag=2 * s) for s in range(stages))
    )


def _row(s: int, microbatches: int, *, ahead: int, lag: int) -> tuple[Action, ...]:
    """Returns a row that starts with `ahead` forwards; W lags `lag` micro-batches behind B."""
    row = [Action("F", s, m) for m in range(min(ahead, microbatches))]
    for m in range(microbatches):
        row.append(Action("B", s, m))
        if m >= lag:
            row.append(Action("W", s, m - lag))
        if m + ahead < microbatches:
            row.append(Action("F", s, m + ahead))
    row += [Action("W", s, m) for m in range(max(0, microbatches - lag), microbatches)]
    return tuple(row)


NAMED = (
    NamedSchedule(
        "zb-h1",
        zb_h1,
        "zero bubble: gradients of parameters are computed where a worker would idle",
    ),
    NamedSchedule("zb-h2", zb_h2, "zero bubble with more memory and less idling"),
)
