"""Settings of all tests: profiles of hypothesis, one thread per process, handlers of signals.

`nohup`, `trap '' INT` and shells with background jobs ignore SIGHUP or SIGINT, and every child process
inherits this. Tests that interrupt a command would then wait forever. If this process handles the signals,
its children start with the default handlers.
"""

import contextlib
import os
import signal
import sys
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

# Tests do not depend on the clock: running or drawing an example may take any time.
NO_DEADLINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", NO_DEADLINE, derandomize=True, max_examples=50, print_blob=True)
settings.register_profile(
    "fuzz", NO_DEADLINE, derandomize=False, max_examples=3000, print_blob=True
)
settings.register_profile(  # for development: fast, and without shrinking of failures
    "dev", NO_DEADLINE, derandomize=True, max_examples=20, phases=[Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

HANDLERS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: lambda *_: None,  # tests go on if the terminal is closed
    signal.SIGTERM: lambda *_: sys.exit(128 + signal.SIGTERM),
}
for number, handler in HANDLERS.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture
def thread_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets of searches count the CPU time of this thread, so that other processes do not matter."""
    monkeypatch.setattr("raddle.searches.stopwatch.perf_counter", time.thread_time)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Shows the sums of the counts that tests recorded, such as the number of plans that were run."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        counts.update({name: n for name, n in report.user_properties if isinstance(n, int)})
    for name, count in sorted(counts.items()):
        terminalreporter.write_line(f"{name} {count}")


with contextlib.suppress(ImportError):
    import torch

    # pytest-xdist starts a process for each core.
    torch.set_num_threads(1)
