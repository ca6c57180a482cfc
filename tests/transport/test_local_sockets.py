"""LocalSockets: each packet arrives once, in order, whichever thread reads; no wait is endless."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from timeouts import HANG

from raddle.transport.local_sockets import LocalSockets


def meet(size: int) -> list[LocalSockets]:
    """Connects ranks that are threads of this process."""
    barrier = threading.Barrier(size)
    names: list[Any] = [None] * size

    def make(rank: int) -> LocalSockets:
        def share(name: Any) -> list[Any]:
            names[rank] = name
            barrier.wait(HANG)
            return list(names)

        return LocalSockets(rank, [r for r in range(size) if r != rank], share, HANG)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(make, range(size)))


@pytest.fixture
def pair() -> Iterator[list[LocalSockets]]:
    words = meet(2)
    yield words
    for sockets in words:
        sockets.close()


def test_tags_keep_apart_and_each_keeps_its_order(pair: list[LocalSockets]) -> None:
    zero, one = pair
    for n in range(5):
        zero.send(1, 7, bytes([n]), HANG)
        zero.send(1, 8, bytes([10 + n]), HANG)
    assert [one.receive(0, 8, HANG)[0] for _ in range(5)] == [10, 11, 12, 13, 14]
    assert [one.receive(0, 7, HANG)[0] for _ in range(5)] == [0, 1, 2, 3, 4]
    one.send(0, 7, b"", HANG)
    assert zero.receive(1, 7, HANG) == b""


@pytest.mark.parametrize("size", [2, 3, 4])
def test_many_threads_wait_and_read_for_each_other(size: int) -> None:
    """Every rank has a thread for each tag; all send to all, more than sockets can buffer."""
    ranks, tags, count = meet(size), range(4), 300

    def talk(rank: int, tag: int) -> bool:
        order = [(peer, n) for n in range(count) for peer in range(size) if peer != rank]
        for peer, n in order:
            ranks[rank].send(peer, tag, n.to_bytes(2, "little") * 40, HANG)
        left = {peer: list(range(count)) for peer in range(size) if peer != rank}
        draw = random.Random(100 * rank + tag)
        while left:
            peer = draw.choice(list(left))
            word = ranks[rank].receive(peer, tag, HANG)
            assert word == left[peer].pop(0).to_bytes(2, "little") * 40
            if not left[peer]:
                del left[peer]
        return True

    with ThreadPoolExecutor(size * len(tags)) as pool:
        done = [pool.submit(talk, rank, tag) for rank in range(size) for tag in tags]
        assert all(d.result(HANG) for d in done)
    for sockets in ranks:
        sockets.close()


def test_who_waits_hears_of_an_end(pair: list[LocalSockets]) -> None:
    zero, one = pair
    zero.send(1, 1, b"last", HANG)
    raised: list[type[BaseException]] = []

    def waits(take: Callable[[], bytes]) -> None:
        try:
            take()
        except OSError as error:
            raised.append(type(error))

    threads = [
        threading.Thread(target=waits, args=(lambda tag=tag: one.receive(0, tag, HANG),))
        for tag in (2, 3)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    zero.shut_down()
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive()
    assert raised == [ConnectionError, ConnectionError]
    assert one.receive(0, 1, HANG) == b"last"  # what had come before


def test_patience_ends(pair: list[LocalSockets]) -> None:
    zero, _ = pair
    with pytest.raises(TimeoutError):
        zero.receive(1, 0, 0.1)

    def fill() -> None:
        for _ in range(100_000):
            zero.send(1, 0, bytes(4096), 0.2)

    with pytest.raises(TimeoutError):  # no thread reads, and the socket is full
        fill()


def test_the_own_end_wakes_its_waiters(pair: list[LocalSockets]) -> None:
    zero, _ = pair
    timer = threading.Timer(0.05, zero.shut_down)
    timer.start()
    with pytest.raises(ConnectionError):
        zero.receive(1, 0, HANG)
    timer.join()
