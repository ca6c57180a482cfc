"""A queue gives its tasks back by urgency, then in the order in which they came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raddle.simulation.waiting import nobody_waits
from raddle.simulation.waiting_queues import GAVE_WAY, NO_KEY, PAIR_KEY, append, pair_of, take_first

PAIRS = [(0, 1), (1, 2), (2, 0)]


@given(st.lists(st.tuples(st.sampled_from(PAIRS), st.none() | st.integers(0, 3)), max_size=60))
def test_tasks_leave_by_urgency_then_arrival(
    steps: list[tuple[tuple[int, int], int | None]],
) -> None:
    waiting = nobody_waits(60, 3)
    queued: dict[tuple[int, int], list[tuple[int, int]]] = {pair: [] for pair in PAIRS}
    gave_way: dict[int, int] = {}  # by task
    for task, (resources, urgency) in enumerate(steps):
        pair = pair_of(waiting, *resources)
        queue = queued[resources]
        if urgency is not None:
            append(waiting, pair, task, urgency)
            queue.append((urgency, task))
            queue.sort()
        elif queue:
            assert take_first(waiting, pair) == queue.pop(0)[1]
        assert (waiting.pairs[pair, PAIR_KEY] == NO_KEY) == (not queue)
        if queue:  # the count belongs to the task, also when a more urgent one is first for a time
            first = queue[0][1]
            assert waiting.pairs[pair, GAVE_WAY] == gave_way.get(first, 0)
            waiting.pairs[pair, GAVE_WAY] += 1
            gave_way[first] = gave_way.get(first, 0) + 1
