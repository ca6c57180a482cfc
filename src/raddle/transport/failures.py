"""Knows which rank has failed, and makes the exceptions that waits of this process raise after a failure.

Ranks report failures to each other over the failure channel (failure_channel.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from raddle.transport.base import WaitLabel, stop_error, timeout_error
from raddle.transport.failure_channel import FailureChannel
from raddle.transport.rendezvous import AllGather

GRACE = 3.0  # seconds to wait, after a connection breaks, for the report that explains it


class Failures:
    """The failures that one rank knows of.

    timeout: seconds after which a wait fails. limited: whether torch.distributed is given this limit for
    each wait. With NCCL it is not, because the wait would then block the host; NCCL's watchdog stops an
    operation that takes longer than the time-out of its process group, which is the same.
    """

    def __init__(self, rank: int, timeout: float, *, limited: bool) -> None:
        self.rank = rank
        self._limited = limited
        self._channel: FailureChannel | None = None
        self._callbacks: list[Callable[[str], None]] = []
        self._lock = threading.Lock()
        self.set_timeout(timeout)

    def set_timeout(self, seconds: float) -> None:
        """Sets the seconds after which a wait fails."""
        self.timeout = seconds
        # The arguments of torch's Work.wait.
        self.wait_args = (timedelta(seconds=seconds),) if self._limited else ()

    def start_listening(
        self, size: int, all_gather: AllGather, abort_waits: Sequence[Callable[[], None]]
    ) -> None:
        """Opens the failure channel. abort_waits: functions that make waits of this rank raise."""

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
        """The rank that failed first, and the reason; None: no rank has failed."""
        return None if self._channel is None else self._channel.first_failure

    def wait_for_failure(self, seconds: float) -> tuple[int, str] | None:
        """Waits at most `seconds` for the report of a failure, and returns it; None: there is none."""
        return None if self._channel is None else self._channel.wait_for_failure(seconds)

    def check(self) -> None:
        """Raises if a rank has failed."""
        if (failure := self.first_failure) is not None:
            raise stop_error(self.rank, *failure)

    def report(self, reason: str) -> None:
        """Reports to all other ranks that this one has failed."""
        if self._channel is not None:
            self._channel.report(self.rank, reason)

    def on_failure(self, stop: Callable[[str], None]) -> None:
        """Calls `stop(message)` when a rank fails, or now if one has failed already."""
        with self._lock:
            self._callbacks.append(stop)
            failed = self.first_failure
        # This may be the second call, if the rank failed just now; `stop` ignores it.
        if failed is not None:
            stop(str(stop_error(self.rank, *failed)))

    def explain(self, label: WaitLabel, seconds: float, error: RuntimeError) -> Exception:
        """Returns the exception to raise after torch raised `error`, `seconds` after the wait began.

        The exception names the rank that has failed or, if none is known, what this rank waited for.
        """
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
        """Returns the exception to raise after one of raddle's own connections closed or timed out."""
        text = "timed out" if isinstance(error, TimeoutError) else str(error)
        return self.explain(label, seconds, RuntimeError(text))

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()


class ReportsFailures:
    """The part of a transport about failures: it passes calls to the `failures` of the rank."""

    failures: Failures

    def on_failure(self, stop: Callable[[str], None]) -> None:
        self.failures.on_failure(stop)

    def check(self) -> None:
        self.failures.check()

    def fail(self, reason: str) -> None:
        self.failures.report(reason)
