"""The send buffer has room for about a millisecond of sending, within bounds."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raddle.transport import send_buffer
from raddle.transport.send_buffer import (
    FASTEST,
    LARGEST,
    RATES,
    SMALLEST,
    SendBuffer,
    buffer_bytes,
    delivery_rate,
)


@given(st.lists(st.floats(1, 1e11), min_size=1, max_size=20))
def test_a_size_lies_within_the_bounds(rates: list[float]) -> None:
    assert SMALLEST <= buffer_bytes(rates) <= LARGEST


@given(st.floats(1, FASTEST), st.floats(1, FASTEST))
def test_a_faster_connection_has_no_smaller_buffer(rate: float, other: float) -> None:
    slow, fast = sorted((rate, other))
    assert buffer_bytes([slow]) <= buffer_bytes([fast])


@given(st.permutations([1e8] * 12 + [1e10] * 3))
def test_single_rates_that_are_too_high_do_not_count(rates: list[float]) -> None:
    assert buffer_bytes(rates) == SMALLEST


def test_the_buffer_follows_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [1e8] * RATES + [5e8] * RATES + [1e8] * RATES
    coming = iter(rates)
    monkeypatch.setattr(send_buffer, "delivery_rate", lambda connection: next(coming))
    with socket.socket() as connection:
        buffer, sizes = SendBuffer(connection), []
        for _ in rates:
            buffer.adapt()
            sizes.append(buffer.nbytes)
        room = connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert sizes[:RATES] == [SMALLEST] * RATES
    assert max(sizes) == sizes[2 * RATES - 1] == LARGEST
    assert sizes[-1] == SMALLEST
    assert room <= 2 * SMALLEST  # it was set again


def test_a_connection_that_says_nothing_keeps_the_smallest_buffer() -> None:
    a, b = socket.socketpair()  # these are not TCP
    with a, b:
        assert delivery_rate(a) == 0.0


def test_the_kernel_says_the_rate_of_a_connection() -> None:
    nbytes = 1 << 24
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sending,
        server.accept()[0] as peer,
    ):
        sender = threading.Thread(target=sending.sendall, args=(bytes(nbytes),))
        sender.start()
        left = nbytes
        while left:
            left -= len(peer.recv(1 << 20))
        sender.join()
        rate = delivery_rate(sending)
    assert 0 < rate < 1e12 if hasattr(socket, "TCP_INFO") else rate == 0
