"""Transports: how tensors get from one rank to another. This one keeps all ranks as threads of a process.

Bytes are counted from the tensors handed over, never from the program.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Hashable

from torch import Tensor

TIMEOUT = 60.0  # seconds


class Threads:
    """Mailboxes between ranks that are threads."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self.sent: dict[tuple[int, int], int] = defaultdict(int)  # bytes by pair, point to point
        self.reduced: dict[int, int] = defaultdict(int)  # bytes of all-reduced tensors by rank
        self.failed = threading.Event()
        self._boxes: dict[Hashable, queue.SimpleQueue[Tensor]] = defaultdict(queue.SimpleQueue)
        self._lock = threading.Lock()

    def send(self, source: int, target: int, tag: Hashable, tensor: Tensor) -> None:
        with self._lock:
            self.sent[source, target] += tensor.nbytes
            box = self._boxes[source, target, tag]
        box.put(tensor.clone())

    def receive(self, source: int, target: int, tag: Hashable) -> Tensor:
        with self._lock:
            box = self._boxes[source, target, tag]
        waited = 0.0
        while True:
            try:
                return box.get(timeout=0.2)
            except queue.Empty:
                waited += 0.2
                if self.failed.is_set():
                    raise RuntimeError(f"rank {target} stops: another rank has failed") from None
                if waited > self.timeout:
                    raise TimeoutError(
                        f"rank {target} waits for {tag} from rank {source} for {waited:.0f} s"
                    ) from None

    def all_reduce(
        self, rank: int, ranks: tuple[int, ...], tag: Hashable, tensor: Tensor
    ) -> Tensor:
        """The sum over ranks, in the order of ranks, so that all get the same bits."""
        self.reduced[rank] += tensor.nbytes
        first = ranks[0]
        if rank != first:
            self._put(rank, first, tag, tensor)
            return self.receive(first, rank, (tag, "sum"))
        total = tensor.clone()
        for other in ranks[1:]:
            total += self.receive(other, rank, tag)
        for other in ranks[1:]:
            self._put(rank, other, (tag, "sum"), total)
        return total

    def _put(self, source: int, target: int, tag: Hashable, tensor: Tensor) -> None:
        with self._lock:
            box = self._boxes[source, target, tag]
        box.put(tensor.clone())
