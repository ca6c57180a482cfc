"""Links and devices are never idle while somebody could use them, and nobody waits for ever."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raddle.simulation.engine import run_tasks
from raddle.simulation.waiting import MAX_GIVE_WAY

# A task: nanoseconds, first resource or None, second resource or None, urgency, tasks that it waits for.
Task = tuple[int, int | None, int | None, int, frozenset[int]]
RESOURCES = 5


@st.composite
def task_lists(draw: st.DrawFn) -> list[Task]:
    tasks: list[Task] = []
    for i in range(draw(st.integers(1, 40))):
        first = draw(st.integers(0, RESOURCES - 1) | st.none())
        second = draw(st.integers(0, RESOURCES - 1) | st.none())
        if second == first:
            second = None
        shortest = 0 if first is None and second is None else 1
        waits = draw(st.frozensets(st.integers(0, i - 1), max_size=2)) if i else frozenset()
        tasks.append(
            (draw(st.integers(shortest, 12)), first, second, draw(st.integers(0, 2)), waits)
        )
    return tasks


def run(tasks: list[Task]) -> tuple[list[int], list[int], list[int]]:
    """Starts, ends and causes of the engine."""
    later = [(before, i) for i, task in enumerate(tasks) for before in task[4]]
    later.sort()
    counts = np.bincount([before for before, _ in later], minlength=len(tasks))

    def column(k: int) -> np.ndarray:
        return np.array([-1 if task[k] is None else task[k] for task in tasks], np.int64)

    start, end, cause = run_tasks(
        column(0), column(1), column(2), np.array([len(task[4]) for task in tasks]),
        np.concatenate([[0], np.cumsum(counts)]), np.array([i for _, i in later], np.int32),
        RESOURCES, column(3),
    )  # fmt: skip
    return start.tolist(), end.tolist(), cause.tolist()


def held(task: Task) -> list[int]:
    return [r for r in task[1:3] if r is not None]


def reference(tasks: list[Task]) -> list[int]:
    """The starts by the rule in words: at every time, all ready tasks try to start, in order.

    Nobody reserves resources here.
    """
    start: dict[int, int] = {}
    end: dict[int, int] = {}
    free_from = [0] * RESOURCES
    now = 0
    while len(start) < len(tasks):
        ready = {
            i: max((end[b] for b in task[4]), default=0)
            for i, task in enumerate(tasks)
            if i not in start and all(b in end for b in task[4])
        }
        empty = [i for i in ready if not held(tasks[i])]
        for i in empty:
            start[i], end[i] = ready[i], ready[i] + tasks[i][0]
        if empty:
            continue
        for i in sorted(ready, key=lambda i: (tasks[i][3], ready[i], i)):
            if ready[i] <= now and all(free_from[r] <= now for r in held(tasks[i])):
                start[i], end[i] = now, now + tasks[i][0]
                for r in held(tasks[i]):
                    free_from[r] = end[i]
        times = {*free_from, *end.values()}
        now = min((t for t in times if t > now), default=now)
    return [start[i] for i in range(len(tasks))]


@given(task_lists())
def test_the_engine_follows_the_rule(tasks: list[Task]) -> None:
    start, end, cause = run(tasks)
    assert start == reference(tasks)
    for i, before in enumerate(cause):
        # What a task waited for last ends when the task starts.
        assert start[i] == (end[before] if before >= 0 else 0)


@given(task_lists())
def test_no_resource_is_idle_while_a_ready_task_needs_only_idle_ones(tasks: list[Task]) -> None:
    start, end, _ = run(tasks)
    for i, task in enumerate(tasks):
        ready = max((end[b] for b in task[4]), default=0)
        for now in range(ready, start[i]):
            busy = [
                r for r in held(task) for j, other in enumerate(tasks)
                if r in held(other) and start[j] <= now < end[j]
            ]  # fmt: skip
            assert busy, f"task {i} could start at {now}"


@given(st.permutations(range(12)), st.data())
def test_numbers_do_not_matter_if_ready_times_differ(order: list[int], data: st.DataObject) -> None:
    # Each message waits for a task of its own without resources, so that all ready times are different.
    messages: list[Task] = [
        (data.draw(st.integers(1, 30)), 0, data.draw(st.integers(1, 3)), 0, frozenset([i]))
        for i in range(12)
    ]
    gates: list[Task] = [(3 * i, None, None, 0, frozenset()) for i in range(12)]
    plain = run(gates + messages)[0][12:]
    renumbered = run(gates + [messages[i] for i in order])[0][12:]
    assert [plain[i] for i in order] == renumbered


def alternating(count: int) -> list[Task]:
    """Two links that are never free at the same time, for `count` messages; the last message needs both."""
    first: list[Task] = [(10, 0, None, 0, frozenset([i - 1] if i else [])) for i in range(count)]
    # The messages of the second link are shifted by 5.
    second: list[Task] = [(5, 1, None, 0, frozenset())]
    second += [(10, 1, None, 0, frozenset([count + i])) for i in range(count)]
    return [*first, *second, (1, 0, 1, 0, frozenset())]


def test_a_message_gives_way_a_bounded_number_of_times() -> None:
    starts = {count: run(alternating(count))[0][-1] for count in (100, 1000)}
    assert starts[100] == starts[1000]  # independent of how many come later
    # Every 5 ns one of the links is free and the other is not.
    assert starts[100] <= 5 * (MAX_GIVE_WAY + 3)


def test_equal_messages_share_a_link_in_their_order() -> None:
    start, end, _ = run([(7, 0, 1 + i % 4, 0, frozenset()) for i in range(9)])
    assert start == [7 * i for i in range(9)]
    assert all(a <= b for a, b in pairwise(end))
