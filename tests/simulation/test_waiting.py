"""Links and devices are never idle while somebody could use them, and nobody waits for ever."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raddle.simulation.engine import run_tasks
from raddle.simulation.waiting import MAX_GIVE_WAY

# A task: nanoseconds on its resources, first resource or None, second resource or None, urgency, tasks that
# it waits for, nanoseconds in flight.
Task = tuple[int, int | None, int | None, int, frozenset[int], int]
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
        duration, urgency = draw(st.integers(shortest, 12)), draw(st.integers(0, 2))
        tasks.append((duration, first, second, urgency, waits, draw(st.integers(0, 9))))
    return tasks


def run(tasks: list[Task]) -> tuple[list[int], list[int], list[int]]:
    """Starts, ends and causes of the engine."""
    later = [(before, i) for i, task in enumerate(tasks) for before in task[4]]
    later.sort()
    counts = np.bincount([before for before, _ in later], minlength=len(tasks))

    def column(k: int) -> np.ndarray:
        return np.array([-1 if task[k] is None else task[k] for task in tasks], np.int64)

    start, end, cause = run_tasks(
        column(0), column(5), column(1), column(2), np.array([len(task[4]) for task in tasks]),
        np.concatenate([[0], np.cumsum(counts)]), np.array([i for _, i in later], np.int32),
        RESOURCES, np.zeros(RESOURCES, np.bool_), column(3),
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
            start[i], end[i] = ready[i], ready[i] + tasks[i][0] + tasks[i][5]
        if empty:
            continue
        for i in sorted(ready, key=lambda i: (tasks[i][3], ready[i], i)):
            if ready[i] <= now and all(free_from[r] <= now for r in held(tasks[i])):
                start[i], end[i] = now, now + tasks[i][0] + tasks[i][5]
                for r in held(tasks[i]):
                    free_from[r] = now + tasks[i][0]
        times = {*free_from, *end.values()}
        now = min((t for t in times if t > now), default=now)
    return [start[i] for i in range(len(tasks))]


@given(task_lists())
def test_the_engine_follows_the_rule(tasks: list[Task]) -> None:
    start, end, cause = run(tasks)
    assert start == reference(tasks)
    for i, before in enumerate(cause):
        # What a task waited for last ends, or releases a resource, when the task starts.
        if before < 0:
            assert start[i] == 0
        elif before in tasks[i][4]:
            assert start[i] == end[before]
        else:
            assert start[i] == start[before] + tasks[before][0]
            assert {*held(tasks[i])} & {*held(tasks[before])}


@given(task_lists())
def test_no_resource_is_idle_while_a_ready_task_needs_only_idle_ones(tasks: list[Task]) -> None:
    start, end, _ = run(tasks)
    for i, task in enumerate(tasks):
        ready = max((end[b] for b in task[4]), default=0)
        for now in range(ready, start[i]):
            busy = [
                r for r in held(task) for j, other in enumerate(tasks)
                if r in held(other) and start[j] <= now < start[j] + other[0]
            ]  # fmt: skip
            assert busy, f"task {i} could start at {now}"


@given(st.permutations(range(12)), st.data())
def test_numbers_do_not_matter_if_ready_times_differ(order: list[int], data: st.DataObject) -> None:
    # Each message waits for a task of its own without resources, so that all ready times are different.
    messages: list[Task] = [
        (
            data.draw(st.integers(1, 30)), data.draw(st.integers(0, 1)), data.draw(st.integers(2, 4)), 0,
            frozenset([i]), data.draw(st.integers(0, 9)),
        )
        for i in range(12)
    ]  # fmt: skip
    gates: list[Task] = [(3 * i, None, None, 0, frozenset(), 0) for i in range(12)]
    plain = run(gates + messages)[0][12:]
    renumbered = run(gates + [messages[i] for i in order])[0][12:]
    assert [plain[i] for i in order] == renumbered


def alternating(count: int, duration: int, shift: int) -> list[Task]:
    """Two links that are never free at the same time, for `count` messages; the last message needs both."""
    first: list[Task] = [
        (duration, 0, None, 0, frozenset([i - 1] if i else []), 0) for i in range(count)
    ]
    second: list[Task] = [(shift, 1, None, 0, frozenset(), 0)]
    second += [(duration, 1, None, 0, frozenset([count + i]), 0) for i in range(count)]
    return [*first, *second, (1, 0, 1, 0, frozenset(), 0)]


@given(st.integers(2, 50), st.data())
def test_a_message_is_overtaken_a_bounded_number_of_times(
    duration: int, data: st.DataObject
) -> None:
    shift = data.draw(st.integers(1, duration - 1))
    starts, overtaking = [], []
    for count in (60, 200):
        start = run(alternating(count, duration, shift))[0]
        starts.append(start[-1])
        overtaking.append(sum(0 < s < start[-1] for s in start[:-1]))
    assert starts[0] == starts[1]  # independent of how many come later
    # It gives way to one message each time, and then waits for one that is already on its way.
    assert overtaking[0] <= MAX_GIVE_WAY + 2
    assert starts[0] <= (MAX_GIVE_WAY + 2) * duration


@given(st.integers(1, 9), st.data())
def test_no_stream_of_messages_delays_a_message_for_ever(longest: int, data: st.DataObject) -> None:
    """Four streams of random messages, each of which starts when the one before it ends."""
    message: Task = (1, 0, 1, 0, frozenset(), 0)  # the first in the order at time 0
    links = [(0, None), (1, None), (0, 2), (3, 1)]
    streams: list[list[Task]] = []
    for first, second in links:
        durations = data.draw(st.lists(st.integers(1, longest), min_size=40, max_size=40))
        streams.append([(ns, first, second, 0, frozenset(), 0) for ns in durations])
    occupied: list[Task] = [
        (data.draw(st.integers(1, longest)), r, None, 0, frozenset(), 0) for r in (0, 1)
    ]
    tasks = [*occupied, message]  # both links are occupied first
    for stream in streams:
        for k, task in enumerate(stream):
            waits = frozenset([len(tasks) - 1]) if k else frozenset()
            tasks.append((*task[:4], waits, 0))
    start = run(tasks)[0]
    assert start[2] <= (MAX_GIVE_WAY + 2) * longest


@given(
    count=st.integers(1, 9), duration=st.integers(1, 50), latency=st.integers(0, 100),
    into=st.booleans(),
)  # fmt: skip
def test_equal_messages_through_one_link_end(
    count: int, duration: int, latency: int, into: bool
) -> None:
    """They leave one device (or, if `into`, reach it) one after the other, and share one latency."""
    tasks: list[Task] = []
    for i in range(count):
        other = 1 + i % 4
        links = (other, 0) if into else (0, other)
        tasks.append((duration, *links, 0, frozenset(), latency))
    start, end, _ = run(tasks)
    assert start == [duration * i for i in range(count)]
    assert end == [latency + duration * (i + 1) for i in range(count)]
