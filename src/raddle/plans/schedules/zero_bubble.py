"""Zero bubble: the backward is split, and the part for parameters (W), which nobody awaits, fills bubbles.

Qi et al. (arXiv 2401.10241, section 2), the two schedules made by hand. Both are 1F1B with two numbers a
worker: how many forwards it starts with, and by how many micro-batches W lags behind B. Their sum is the
same on all workers, and so is the number of micro-batches that are alive.
"""

from __future__ import annotations

from raddle.plans.named_schedule import NamedSchedule
from raddle.plans.schedule import Action, Schedule

# s: stage, m: micro-batch; P stages


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """A third of 1F1B's bubble where F, B and W are equal, with the P micro-batches of 1F1B's first worker.

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
    """No worker idles between its first and its last action, with 2P - 1 micro-batches alive.

    F0 F1 F2 F3 F4 B0 W0 B1 W1 B2 W2 B3 W3 B4 W4 .. ..
    .. F0 F1 F2 B0 F3 B1 F4 B2 W0 B3 W1 B4 W2 W3 W4 ..
    .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 W1 W2 W3 W4

    Differs from the paper: workers still update together, so against ZB-H1 a step idles elsewhere (at the
    ends), not less. The paper's (P-1)(F + B - 2W) inside holds for F = B >= W. With M < 2P - 1 some bubbles
    stay, and ZB-H1 can be the shorter.
    """
    return Schedule(
        tuple(_row(s, microbatches, ahead=2 * (stages - s) - 1, lag=2 * s) for s in range(stages))
    )


def _row(s: int, microbatches: int, *, ahead: int, lag: int) -> tuple[Action, ...]:
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
        "zb-h1", zb_h1, "zero bubble: gradients of parameters apart, where a worker would idle"
    ),
    NamedSchedule("zb-h2", zb_h2, "zero bubble with more memory and less idling"),
)
