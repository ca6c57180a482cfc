"""Schedules in which all micro-batches pass the workers in the same order, with a flush after the step."""

from __future__ import annotations

from raddle.plans.named_schedule import NamedSchedule
from raddle.plans.schedule import Action, Schedule

# s: stage, m: micro-batch, w: worker; P workers, M micro-batches, v stages (chunks) on each worker. In the
# pictures, a line is a worker and time goes to the right; F1 (F1.2) is the forward of micro-batch 1 (on
# stage 2).


def sequential(stages: int, microbatches: int) -> Schedule:
    """Plain model parallelism: forward and backward of a micro-batch, then those of the next one.

    F0 .. .. B0 F1 .. .. B1
    .. F0 B0 .. .. F1 B1 ..
    """
    phases = [(phase, m) for m in range(microbatches) for phase in "FB"]
    return Schedule(tuple(tuple(Action(p, s, m) for p, m in phases) for s in range(stages)))


def gpipe(stages: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards, the last micro-batch first. GPipe, Huang et al. 2019.

    F0 F1 F2 .. .. B2 B1 B0
    .. F0 F1 F2 B2 B1 B0 ..

    Differs from the paper: recomputation is a setting of the plan, not of the schedule.
    """
    forwards = [("F", m) for m in range(microbatches)]
    backwards = [("B", m) for m in reversed(range(microbatches))]
    phases = forwards + backwards
    return Schedule(tuple(tuple(Action(p, s, m) for p, m in phases) for s in range(stages)))


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """One forward, one backward, with a flush: at most P - s micro-batches are alive on stage s.

    PipeDream-Flush, Narayanan et al. 2021 (arXiv 2006.09503, section 3).

    F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
    .. F0 F1 .. B0 F2 B1 F3 B2 .. B3 ..
    .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..

    Differs from the paper: nothing. Worker s starts with P - s forwards, or with M if there are fewer.
    """
    return Schedule(
        tuple(
            _alternate(
                [Action("F", s, m) for m in range(microbatches)],
                [Action("B", s, m) for m in range(microbatches)],
                ahead=stages - s,
            )
            for s in range(stages)
        )
    )


def interleaved(stages: int, workers: int, microbatches: int) -> Schedule:
    """1F1B where stage s is on worker s mod P: a bubble v times smaller for v times the transfers.

    Megatron-LM, Narayanan et al. 2021 (arXiv 2104.04473, section 2.2). P = 2, v = 2:

    F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 .... B2.2 .... B3.2 B2.0 B3.0
    .... F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 B2.1 B3.1 ....

    Differs from the paper: M need not be a multiple of P. Then the rows are those of the next multiple,
    without the extra micro-batches; this cannot deadlock either. With v = 1 it is 1F1B.
    """
    chunks = stages // workers
    if chunks == 1:
        return one_f_one_b(stages, microbatches)
    padded = -(-microbatches // workers) * workers  # M, rounded up to a multiple of P
    rows = []
    for w in range(workers):
        # (c, m): chunk and micro-batch of each forward; backwards take the chunks in reverse order
        visits = [_visit(k, chunks, workers) for k in range(padded * chunks)]
        forwards = [Action("F", c * workers + w, m) for c, m in visits]
        backwards = [Action("B", (chunks - 1 - c) * workers + w, m) for c, m in visits]
        # forwards before the first backward, as in Megatron-LM
        ahead = 2 * (workers - 1 - w) + (chunks - 1) * workers + 1
        row = _alternate(forwards, backwards, ahead)
        rows.append(tuple(action for action in row if action.micro_batch < microbatches))
    return Schedule(tuple(rows))


def _visit(k: int, chunks: int, workers: int) -> tuple[int, int]:
    """Returns (chunk, micro-batch) of a worker's k-th forward: P micro-batches of each chunk in turn."""
    group, index_in_group = divmod(k, workers * chunks)
    chunk, i = divmod(index_in_group, workers)
    return chunk, group * workers + i


def _alternate(forwards: list[Action], backwards: list[Action], ahead: int) -> tuple[Action, ...]:
    """Returns a row of `ahead` forwards, then backwards and forwards in turn, then all other backwards."""
    row = forwards[:ahead]
    for i, backward in enumerate(backwards):
        row.append(backward)
        row += forwards[i + ahead : i + ahead + 1]
    return tuple(row)


NAMED = (
    NamedSchedule(
        "sequential", sequential, "plain model parallelism: one micro-batch after the other",
        serial=True,
    ),
    NamedSchedule("gpipe", gpipe, "all forwards, then all backwards", allows_replicas=True),
    NamedSchedule(
        "1f1b", one_f_one_b, "a backward as soon as it can be: fewer micro-batches are alive",
        allows_replicas=True,
    ),
    NamedSchedule(
        # with one stage on each worker it is 1F1B; make_chunked: with several
        "interleaved", one_f_one_b,
        "1F1B with several stages on each worker: a smaller bubble, more messages",
        make_chunked=interleaved,
    ),
)  # fmt: skip
