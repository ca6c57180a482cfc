"""Warns which ranks are missing in an all-reduce, like Horovod's stall inspector.

An all-reduce does not say which rank is missing. So a rank that has waited long writes into the job's
store (the store of torch.distributed) what it waits for, and so do all others that wait for the same.
Ranks that have not written a little later are missing. It costs nothing as long as no rank waits for
long.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from torch.distributed import Store  # type: ignore[attr-defined]

from raddle.sync.server_stalls import logger
from raddle.transport.wire import name_ranks


class StallInspector:
    """One rank's inspector: a thread that looks at what this rank waits for.

    key_prefix: for the keys in the store; the same on all ranks. stall: seconds of waiting until a warning.
    """

    def __init__(self, rank: int, size: int, store: Store, key_prefix: str, stall: float) -> None:
        self._rank, self._size, self._store, self._key_prefix = rank, size, store, key_prefix
        self._stall = stall
        self._wait_count = 0  # numbers the waits; the same on all ranks
        self._current_wait: tuple[int, str, float] | None = None  # number, text, start
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="raddle stall inspector", daemon=True
        )
        self._thread.start()

    @contextlib.contextmanager
    def waiting_for(self, what: str, number: int | None = None) -> Iterator[None]:
        """Marks a wait of this rank, such as "to sum the gradients of 'fc.weight'".

        number: identifies the wait on all ranks; needed if ranks wait in different orders.
        """
        self._wait_count += 1
        count = self._wait_count if number is None else number
        self._current_wait = count, what, time.perf_counter()
        try:
            yield
        finally:
            self._current_wait = None

    def close(self) -> None:
        self._end.set()
        self._thread.join(5)

    def _watch(self) -> None:
        """Writes a long wait into the store, and warns which ranks have not done so."""
        reported = 0  # the number of the last wait that was written into the store
        while not self._end.wait(min(1.0, self._stall / 4)):
            wait = self._current_wait
            if wait is None or wait[0] == reported:
                continue
            count, what, since = wait
            if time.perf_counter() - since < self._stall:
                continue
            reported = count
            with contextlib.suppress(RuntimeError):  # rank 0, which has the store, may have ended
                self._store.set(f"{self._key(count)}/{self._rank}", "waits")
                self._end.wait(min(1.0, self._stall / 2))
                missing = [r for r in range(self._size) if not self._is_waiting(count, r)]
                if missing and self._current_wait is not None and self._current_wait[0] == count:
                    logger.warning(
                        "rank %d has waited %.1f s for %s %s: see what the other side does.",
                        self._rank, time.perf_counter() - since, name_ranks(missing), what,
                    )  # fmt: skip

    def _is_waiting(self, count: int, rank: int) -> bool:
        """Returns whether a rank has written that it waits, too. count: the number of the wait."""
        return rank == self._rank or self._store.check([f"{self._key(count)}/{rank}"])

    def _key(self, count: int) -> str:
        return f"raddle/{self._key_prefix}/{count}"
