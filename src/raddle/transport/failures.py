"""What a process knows of ranks that have failed, and the words in which its own waits fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from raddle.transport.base import Doing, late, stops
from raddle.transport.failure_channel import Alarm
from raddle.transport.rendezvous import Share

GRACE = 3.0  # seconds for which a broken connection waits for the news that explain it


class Failures:
    """One rank's; `limited`: whether torch is told how long to wait, which NCCL does not do well."""

    def __init__(self, rank: int, timeout: float, *, limited: bool) -> None:
        self.rank = rank
        self._limited = limited
        self._alarm: Alarm | None = None
        self._stops: list[Callable[[str], None]] = []
        self._lock = threading.Lock()
        self.allow(timeout)

    def allow(self, seconds: float) -> None:
        """From now on anything is waited for so long."""
        self.timeout = seconds
        # With one, NCCL would hold up the host.
        self.limit = (timedelta(seconds=seconds),) if self._limited else ()

    def listen(self, size: int, share: Share, breaks: Sequence[Callable[[], None]]) -> None:
        """From now on a failure is heard, at any time: `breaks` make whatever waits raise."""

        def ring(failed: int, reason: str) -> None:
            with self._lock:
                waiting = list(self._stops)
            for stop in waiting:
                stop(str(stops(self.rank, failed, reason)))
            for break_up in breaks:
                break_up()

        self._alarm = Alarm(self.rank, size, share, ring, self.timeout)

    @property
    def news(self) -> tuple[int, str] | None:
        """The rank that failed first, and why; None: all is well."""
        return None if self._alarm is None else self._alarm.news

    def hear(self, seconds: float) -> tuple[int, str] | None:
        """The news; waits a little for them."""
        return None if self._alarm is None else self._alarm.hear(seconds)

    def check(self) -> None:
        """Raises if a rank has failed."""
        if (news := self.news) is not None:
            raise stops(self.rank, *news)

    def tell(self, reason: str) -> None:
        """Tells all others that this rank has failed."""
        if self._alarm is not None:
            self._alarm.tell(self.rank, reason)

    def on_failure(self, stop: Callable[[str], None]) -> None:
        """Calls `stop` when a rank has failed, or has already."""
        with self._lock:
            self._stops.append(stop)
            failed = self.news
        if failed is not None:  # perhaps for the second time: the first counts
            stop(str(stops(self.rank, *failed)))

    def explain(self, doing: Doing, seconds: float, error: RuntimeError) -> Exception:
        """Why torch raised: another rank's failure if there is one, else what was waited for."""
        slow = "timed out" in str(error).lower() or seconds >= self.timeout
        if (news := self.hear(0 if slow else GRACE)) is not None:
            return stops(self.rank, *news)
        if slow:
            return late(self.rank, seconds, doing)
        said = str(error).partition("\n")[0].partition(". ")[0]
        return RuntimeError(f"rank {self.rank} cannot {doing}, after {seconds:.1f} s: {said}")

    def broken(self, doing: Doing, seconds: float, error: OSError) -> Exception:
        """Why a line of our own has ended, or been silent for too long."""
        said = "timed out" if isinstance(error, TimeoutError) else str(error)
        return self.explain(doing, seconds, RuntimeError(said))

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.close()
