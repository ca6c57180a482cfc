"""Messages between ranks of one machine: through shared memory, or in the word that tells of them."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import torch
from torch import Tensor

from raddle.transport.base import WaitLabel
from raddle.transport.failures import Failures
from raddle.transport.local_sockets import LocalSockets
from raddle.transport.rendezvous import AllGather
from raddle.transport.shared_memory import SharedAreas, can_access, locate_process

MAX_INLINE = 4096  # bytes of a message that its word brings along


class LocalPeers:
    """One rank's; `ranks` are those that see our memory, and we theirs. All ranks make it."""

    def __init__(self, all_gather: AllGather, failures: Failures) -> None:
        self.ranks = _find_local_peers(failures.rank, all_gather)
        self._failures, self._areas = failures, SharedAreas()
        self._sockets = LocalSockets(failures.rank, self.ranks, all_gather, failures.timeout)

    def send(self, target: int, tag: int, buffer: Tensor, label: WaitLabel) -> None:
        """Returns when the message may be read there."""
        packet = _bytes(buffer) if buffer.nbytes <= MAX_INLINE else self._areas.put(buffer)
        began = time.perf_counter()
        try:
            self._sockets.send(target, tag, packet, self._failures.timeout)
        except OSError as error:
            raise self._failures.explain_broken_connection(
                label, time.perf_counter() - began, error
            ) from error

    def receive(self, label: WaitLabel, elements: int, dtype: torch.dtype) -> Tensor:
        """A neighbour's message, once it is there."""
        assert isinstance(label.peer, int)
        assert label.tag is not None
        failures, began = self._failures, time.perf_counter()
        failures.check()
        try:
            packet = self._sockets.receive(label.peer, label.tag, failures.timeout)
        except OSError as error:
            raise failures.explain_broken_connection(
                label, time.perf_counter() - began, error
            ) from error
        failures.check()
        nbytes = elements * dtype.itemsize
        if nbytes > MAX_INLINE:
            return self._areas.get(packet, elements, dtype)
        if len(packet) != nbytes:
            raise RuntimeError(
                f"rank {failures.rank} got {len(packet)} bytes to {label} and {nbytes} are needed: see "
                "whether all ranks have the same plan"
            )
        if not nbytes:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(bytearray(packet), dtype=dtype)

    def shut_down(self) -> None:
        """Whoever waits for a word raises."""
        self._sockets.shut_down()

    def close(self) -> None:
        self._sockets.close()
        self._areas.close()


def _find_local_peers(rank: int, all_gather: AllGather) -> set[int]:
    """Ranks on this machine that may look at each other's memory."""
    location = locate_process()
    locations: list[Any] = list(all_gather(location))
    accessible = [
        r for r, other in enumerate(locations) if r != rank and can_access(location, other)
    ]
    accessible_from = all_gather(accessible)
    if location.file >= 0:
        os.close(location.file)
    return {r for r in accessible if rank in accessible_from[r]}


def _bytes(buffer: Tensor) -> bytes:
    """Of a short message, whatever its type."""
    return ctypes.string_at(buffer.data_ptr(), buffer.nbytes)
