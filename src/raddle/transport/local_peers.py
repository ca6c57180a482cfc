"""Messages between ranks of one machine: through shared memory, or in the word that tells of them."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import torch
from torch import Tensor

from raddle.transport.base import Doing
from raddle.transport.failures import Failures
from raddle.transport.local_sockets import Words
from raddle.transport.rendezvous import Share
from raddle.transport.shared_memory import Areas, seat, sees

SHORT = 4096  # bytes of a message that its word brings along


class Neighbours:
    """One rank's; `ranks` are those that see our memory, and we theirs. All ranks make it."""

    def __init__(self, share: Share, failures: Failures) -> None:
        self.ranks = _near(failures.rank, share)
        self._failures, self._areas = failures, Areas()
        self._words = Words(failures.rank, self.ranks, share, failures.timeout)

    def send(self, target: int, tag: int, buffer: Tensor, doing: Doing) -> None:
        """Returns when the message may be read there."""
        word = _bytes(buffer) if buffer.nbytes <= SHORT else self._areas.put(buffer)
        began = time.perf_counter()
        try:
            self._words.send(target, tag, word, self._failures.timeout)
        except OSError as error:
            raise self._failures.broken(doing, time.perf_counter() - began, error) from error

    def take(self, doing: Doing, elements: int, dtype: torch.dtype) -> Tensor:
        """A neighbour's message, once it is there."""
        assert isinstance(doing.peer, int)
        assert doing.tag is not None
        failures, began = self._failures, time.perf_counter()
        failures.check()
        try:
            word = self._words.take(doing.peer, doing.tag, failures.timeout)
        except OSError as error:
            raise failures.broken(doing, time.perf_counter() - began, error) from error
        failures.check()
        nbytes = elements * dtype.itemsize
        if nbytes > SHORT:
            return self._areas.get(word, elements, dtype)
        if len(word) != nbytes:
            raise RuntimeError(
                f"rank {failures.rank} got {len(word)} bytes to {doing} and {nbytes} are needed: see "
                "whether all ranks have the same plan"
            )
        if not nbytes:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(bytearray(word), dtype=dtype)

    def hang_up(self) -> None:
        """Whoever waits for a word raises."""
        self._words.hang_up()

    def close(self) -> None:
        self._words.close()
        self._areas.close()


def _near(rank: int, share: Share) -> set[int]:
    """Ranks on this machine that may look at each other's memory."""
    own = seat()
    seats: list[Any] = list(share(own))
    mine = [r for r, other in enumerate(seats) if r != rank and sees(own, other)]
    seen = share(mine)
    if own.file >= 0:
        os.close(own.file)
    return {r for r in mine if rank in seen[r]}


def _bytes(buffer: Tensor) -> bytes:
    """Of a short message, whatever its type."""
    return ctypes.string_at(buffer.data_ptr(), buffer.nbytes)
