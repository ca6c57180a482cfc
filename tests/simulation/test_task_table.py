"""The task table: which task waits for which, and with which task an instruction ends."""

import numpy as np

from raddle.clusters import cluster
from raddle.simulation.collective_tasks import ring_links
from raddle.simulation.message_tasks import route_resources
from raddle.simulation.task_table import Tasks, TaskTable


def edges(tasks: Tasks) -> set[tuple[int, int]]:
    """Pairs (task, a task that waits for it)."""
    earlier = np.repeat(np.arange(len(tasks.duration)), np.diff(tasks.pointer))
    return set(zip(earlier.tolist(), tasks.successor.tolist(), strict=True))


def test_a_device_computes_in_order_and_after_what_it_waits_for() -> None:
    table, both, ns = TaskTable(2), np.array([0, 1]), np.array([5, 7])
    table.add_compute(0, both, ns, [])
    table.add_compute(1, both[1:], ns[1:], [0])
    table.add_compute(2, both[:1], ns[:1], [], unordered=True)
    tasks = table.build(2)
    assert tasks.duration.tolist() == [5, 7, 7, 5]
    assert tasks.instruction.tolist() == [0, 0, 1, 2]
    assert edges(tasks) == {(1, 2)}


def test_what_comes_in_several_messages_is_there_with_the_last() -> None:
    table = TaskTable(3)
    source, target = np.array([0, 1, 0]), np.array([2, 2, 1])
    none = np.full(3, -1)
    sent = table.add_tasks(
        0, np.array([3, 4, 5]), np.array([3, 4, 5]), none, target, source, np.ones(3)
    )
    table.end_with_messages(0, target, sent)
    table.add_compute(1, np.array([1, 2]), np.array([1, 1]), [0])
    assert edges(table.build(6)) == {(0, 3), (1, 3), (3, 5), (2, 4)}


def test_the_first_that_needs_a_message_pays_its_overhead() -> None:
    table, device = TaskTable(1), np.array([0])
    table.add_compute(0, device, np.array([1]), [])
    table.receive_overhead[0] = np.array([10])
    for number in (1, 2):
        table.add_compute(number, device, np.array([1]), [0])
    assert table.build(1).duration.tolist() == [1, 11, 1]


def test_hops_that_share_a_link_hold_it_once() -> None:
    on = cluster("p100:2x2")
    first, second = ring_links(on, (0, 1, 2, 3), 4)
    held = [link for link in (*first, *second) if link >= 0]
    assert len(held) == len(set(held))
    assert {*held} == {
        link for a, b in ((0, 1), (1, 2), (2, 3), (3, 0)) for link in route_resources(on, a, b, 4)
        if link >= 0
    }  # fmt: skip
