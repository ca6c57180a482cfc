"""The order of sums is a schedule of one channel; these tests check the properties of such a schedule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raddle.sync.sum_order import order_sums

jobs = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(0, 5)), max_size=12)


def begins(order: list[int], ready: list[float], seconds: list[float]) -> list[float]:
    """Returns when each sum starts if the channel takes them in this order, none before it is ready."""
    free, starts = 0.0, [0.0] * len(ready)
    for i in order:
        starts[i] = max(free, ready[i])
        free = starts[i] + seconds[i]
    return starts


@given(jobs)
def test_whenever_the_channel_is_free_the_most_urgent_of_what_is_ready_goes(
    given: list[tuple[int, int, int]],
) -> None:
    ready, seconds, urgency = ([float(job[k]) for job in given] for k in range(3))
    order = order_sums(ready, seconds, [job[2] for job in given])
    assert sorted(order) == list(range(len(given)))
    begun = begins(order, ready, seconds)
    free = 0.0
    for place, i in enumerate(order):
        left = order[place:]
        assert begun[i] == max(
            free, min(ready[j] for j in left)
        )  # never idle for the sake of order
        here = [j for j in left if ready[j] <= begun[i]]
        assert urgency[i] == min(urgency[j] for j in here)
        free = begun[i] + seconds[i]


@given(jobs)
def test_an_infinitely_fast_channel_takes_them_as_they_come(
    given: list[tuple[int, int, int]],
) -> None:
    ready, urgency = [float(job[0]) for job in given], [job[2] for job in given]
    order = order_sums(ready, [0.0] * len(given), urgency)
    assert order == sorted(range(len(given)), key=lambda i: (ready[i], urgency[i], i))


def test_the_last_layer_is_overtaken() -> None:
    """Gradients are complete from the last layer on; the first layer overtakes all that wait."""
    ready, urgency = [0.0, 0.0, 0.0, 1.0, 2.0], [2, 2, 2, 1, 0]
    assert order_sums(ready, [1.0] * 5, urgency) == [0, 3, 4, 1, 2]
    assert order_sums(ready, [9.0] * 5, urgency) == [0, 4, 3, 1, 2]
