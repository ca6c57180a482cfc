"""Tasks as they are collected: what waits for what, and where an instruction ends."""

import numpy as np

from raddle.clusters import cluster
from raddle.simulation.rows import Rows, Tasks
from raddle.simulation.sending import links_held
from raddle.simulation.summing import ring_links


def edges(tasks: Tasks) -> set[tuple[int, int]]:
    """Pairs of tasks, the earlier first."""
    earlier = np.repeat(np.arange(len(tasks.duration)), np.diff(tasks.pointer))
    return set(zip(earlier.tolist(), tasks.successor.tolist(), strict=True))


def test_a_device_computes_in_order_and_after_what_it_waits_for() -> None:
    rows, both, ns = Rows(2), np.array([0, 1]), np.array([5, 7])
    rows.compute(0, both, ns, [])
    rows.compute(1, both[1:], ns[1:], [0])
    rows.compute(2, both[:1], ns[:1], [], apart=True)
    tasks = rows.tasks(2)
    assert tasks.duration.tolist() == [5, 7, 7, 5]
    assert tasks.instruction.tolist() == [0, 0, 1, 2]
    assert edges(tasks) == {(1, 2)}


def test_what_comes_in_several_messages_is_there_with_the_last() -> None:
    rows = Rows(3)
    source, target = np.array([0, 1, 0]), np.array([2, 2, 1])
    none = np.full(3, -1)
    sent = rows.block(0, np.array([3, 4, 5]), np.array([3, 4, 5]), none, target, source, np.ones(3))
    rows.join(0, target, sent)
    rows.compute(1, np.array([1, 2]), np.array([1, 1]), [0])
    assert edges(rows.tasks(6)) == {(0, 3), (1, 3), (3, 5), (2, 4)}


def test_the_first_that_needs_a_message_takes_it_in() -> None:
    rows, own = Rows(1), np.array([0])
    rows.compute(0, own, np.array([1]), [])
    rows.due[0] = np.array([10])
    for number in (1, 2):
        rows.compute(number, own, np.array([1]), [0])
    assert rows.tasks(1).duration.tolist() == [1, 11, 1]


def test_hops_that_share_a_link_hold_it_once() -> None:
    on = cluster("p100:2x2")
    first, second = ring_links(on, (0, 1, 2, 3), 4)
    held = [link for link in (*first, *second) if link >= 0]
    assert len(held) == len(set(held))
    assert {*held} == {
        link for a, b in ((0, 1), (1, 2), (2, 3), (3, 0)) for link in links_held(on, a, b, 4)
        if link >= 0
    }  # fmt: skip
