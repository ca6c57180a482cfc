"""Messages between ranks of one machine (local peers), through shared memory.

The sender copies the message into shared memory and sends a packet with its address over a Unix socket. A
short message is inside the packet itself.
"""

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

MAX_INLINE = 4096  # the largest message, in bytes, that is sent inside its packet


class LocalPeers:
    """One rank's local peers: ranks on this machine that share memory with it.

    All ranks make their LocalPeers at the same time. ranks: the local peers, which can map this process's
    memory, and whose memory this process can map.
    """

    def __init__(self, all_gather: AllGather, failures: Failures) -> None:
        self.ranks = _find_local_peers(failures.rank, all_gather)
        self._failures, self._areas = failures, SharedAreas()
        self._sockets = LocalSockets(failures.rank, self.ranks, all_gather, failures.timeout)

    def send(self, target: int, tag: int, buffer: Tensor, label: WaitLabel) -> None:
        """Sends a message. When the call returns, the message is copied: the buffer may change."""
        # A short message is sent itself; of a longer one, its address in shared memory.
        packet = _bytes(buffer) if buffer.nbytes <= MAX_INLINE else self._areas.put(buffer)
        began = time.perf_counter()
        try:
            self._sockets.send(target, tag, packet, self._failures.timeout)
        except OSError as error:
            raise self._failures.explain_broken_connection(
                label, time.perf_counter() - began, error
            ) from error

    def receive(self, label: WaitLabel, elements: int, dtype: torch.dtype) -> Tensor:
        """Waits for the message that `label` describes, and returns it."""
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
        """Makes all waits for messages raise."""
        self._sockets.shut_down()

    def close(self) -> None:
        self._sockets.close()
        self._areas.close()


def _find_local_peers(rank: int, all_gather: AllGather) -> set[int]:
    """Returns the ranks on this machine that can map this rank's memory, and the other way round."""
    location = locate_process()
    locations: list[Any] = list(all_gather(location))
    accessible = [r for r, peer in enumerate(locations) if r != rank and can_access(location, peer)]
    accessible_by_rank = all_gather(accessible)  # by rank r: the ranks whose memory r can map
    if location.file >= 0:  # the file that the others have tried to open
        os.close(location.file)
    return {r for r in accessible if rank in accessible_by_rank[r]}


def _bytes(buffer: Tensor) -> bytes:
    """Returns the bytes of a tensor of any dtype."""
    return ctypes.string_at(buffer.data_ptr(), buffer.nbytes)
