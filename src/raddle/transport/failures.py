"""What a process knows of ranks that have failed, and the words in which its own waits fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from raddle.transport.base import WaitLabel, stop_error, timeout_error
from raddle.transport.failure_channel import FailureChannel
from raddle.transport.rendezvous import AllGather

GRACE = 3.0  # seconds for which a broken connection waits for the news that explain it


class Failures:
    """One rank's; `limited`: whether torch is told how long to wait, which NCCL does not do well."""

    def __init__(self, rank: int, timeout: float, *, limited: bool) -> None:
        self.rank = rank
        self._limited = limited
        self._channel: FailureChannel | None = None
        self._callbacks: list[Callable[[str], None]] = []
        self._lock = threading.Lock()
        self.set_timeout(timeout)

    def set_timeout(self, seconds: float) -> None:
        """From now on anything is waited for so long."""
        self.timeout = seconds
        # With one, NCCL would hold up the host.
        self.wait_args = (timedelta(seconds=seconds),) if self._limited else ()

    def start_listening(
        self, size: int, all_gather: AllGather, abort_waits: Sequence[Callable[[], None]]
    ) -> None:
        """From now on a failure is heard, at any time: `breaks` make whatever waits raise."""

        def on_failure(failed: int, reason: str) -> None:
            with self._lock:
                callbacks = list(self._callbacks)
            for stop in callbacks:
                stop(str(stop_error(self.rank, failed, reason)))
            for abort in abort_waits:
                abort()

        self._channel = FailureChannel(self.rank, size, all_gather, on_failure, self.timeout)

    @property
    def first_failure(self) -> tuple[int, str] | None:
        """The rank that failed first, and why; None: all is well."""
        return None if self._channel is None else self._channel.first_failure

    def wait_for_failure(self, seconds: float) -> tuple[int, str] | None:
        """The news; waits a little for them."""
        return None if self._channel is None else self._channel.wait_for_failure(seconds)

    def check(self) -> None:
        """Raises if a rank has failed."""
        if (failure := self.first_failure) is not None:
            raise stop_error(self.rank, *failure)

    def report(self, reason: str) -> None:
        """Tells all others that this rank has failed."""
        if self._channel is not None:
            self._channel.report(self.rank, reason)

    def on_failure(self, stop: Callable[[str], None]) -> None:
        """Calls `stop` when a rank has failed, or has already."""
        with self._lock:
            self._callbacks.append(stop)
            failed = self.first_failure
        if failed is not None:  # perhaps for the second time: the first counts
            stop(str(stop_error(self.rank, *failed)))

    def explain(self, label: WaitLabel, seconds: float, error: RuntimeError) -> Exception:
        """Why torch raised: another rank's failure if there is one, else what was waited for."""
        slow = "timed out" in str(error).lower() or seconds >= self.timeout
        if (failure := self.wait_for_failure(0 if slow else GRACE)) is not None:
            return stop_error(self.rank, *failure)
        if slow:
            return timeout_error(self.rank, seconds, label)
        torch_message = str(error).partition("\n")[0].partition(". ")[0]
        return RuntimeError(
            f"rank {self.rank} cannot {label}, after {seconds:.1f} s: {torch_message}"
        )

    def explain_broken_connection(
        self, label: WaitLabel, seconds: float, error: OSError
    ) -> Exception:
        """Why a line of our own has ended, or been silent for too long."""
        text = "timed out" if isinstance(error, TimeoutError) else str(error)
        return self.explain(label, seconds, RuntimeError(text))

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
