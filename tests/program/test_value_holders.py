"""In which order devices send, and which copy of a box they fetch."""

from itertools import product

from raddle.program.program import Message
from raddle.program.value_holders import chosen_copy, in_sending_order, sending_turn, target_at_turn


def test_every_device_sends_to_its_next_neighbour_first() -> None:
    messages = [Message(s, t, ()) for s, t in product(range(3), repeat=2) if s != t]
    ways = [(m.source, m.target) for m in in_sending_order(messages, 3)]
    assert ways == [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)]


def test_a_turn_leads_to_whom_it_is_for() -> None:
    for source, target in product(range(5), repeat=2):
        assert target_at_turn(source, sending_turn(source, target, 5), 5) == target


def test_neighbours_take_different_copies() -> None:
    assert [chosen_copy(device, 3) for device in range(6)] == [0, 1, 2, 0, 1, 2]
