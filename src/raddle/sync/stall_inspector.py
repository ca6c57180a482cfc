"""Says who keeps a sum waiting. It costs nothing unless somebody waits long.

A sum does not tell who is missing. So a rank that has waited long says in the job's store what for, as
do all others who wait for the same; those who have said nothing a little later are the missing ones.
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
    """One rank's; `place` is a word for its keys in the store, the same on all ranks."""

    def __init__(self, rank: int, size: int, store: Store, key_prefix: str, stall: float) -> None:
        self._rank, self._size, self._store, self._key_prefix = rank, size, store, key_prefix
        self._stall = stall
        self._wait_count = 0  # of what was waited for, if nobody numbers it: the same on all ranks
        self._current_wait: tuple[int, str, float] | None = None  # count, what, since when
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="raddle lateness", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def waiting_for(self, what: str, number: int | None = None) -> Iterator[None]:
        """`number`: the same on all ranks, for what they wait for in different orders."""
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
        reported = 0
        while not self._end.wait(min(1.0, self._stall / 4)):
            wait = self._current_wait
            if wait is None or wait[0] == reported:
                continue
            count, what, since = wait
            if time.perf_counter() - since < self._stall:
                continue
            reported = count
            with contextlib.suppress(RuntimeError):  # the store may have ended with rank 0
                self._store.set(f"{self._key(count)}/{self._rank}", "waits")
                self._end.wait(min(1.0, self._stall / 2))
                missing = [r for r in range(self._size) if not self._is_waiting(count, r)]
                if missing and self._current_wait is not None and self._current_wait[0] == count:
                    logger.warning(
                        "rank %d has waited %.1f s for %s %s: see what the other side does.",
                        self._rank, time.perf_counter() - since, name_ranks(missing), what,
                    )  # fmt: skip

    def _is_waiting(self, count: int, rank: int) -> bool:
        return rank == self._rank or self._store.check([f"{self._key(count)}/{rank}"])

    def _key(self, count: int) -> str:
        return f"raddle/{self._key_prefix}/{count}"
