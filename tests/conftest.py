"""Hypothesis profiles, one thread a test process (pytest-xdist already fills the cores), and Ctrl-C.

`nohup`, `trap '' INT` and shells that start jobs in the background have SIGHUP or SIGINT ignored, which
every process inherits, so that tests which interrupt a command would wait for ever. Children of a process
that handles a signal start with its default.
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

# Nothing depends on the clock: an example may take any time, and so may drawing it.
NO_DEADLINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", NO_DEADLINE, derandomize=True, max_examples=50, print_blob=True)
settings.register_profile(
    "fuzz", NO_DEADLINE, derandomize=False, max_examples=3000, print_blob=True
)
settings.register_profile(  # while working: quick, and it stops at the first failure as found
    "dev", NO_DEADLINE, derandomize=True, max_examples=20, phases=[Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

HANDLERS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: lambda *_: None,  # a terminal that is closed ends no tests
    signal.SIGTERM: lambda *_: sys.exit(128 + signal.SIGTERM),
}
for number, handler in HANDLERS.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture
def thread_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budgets of searches count seconds of this thread: other processes take nothing from them."""
    for module in ("searches.stopwatch", "searches.optcnn.elimination"):
        monkeypatch.setattr(f"raddle.{module}.perf_counter", time.thread_time)
    for module in ("coarse", "mixed_rounds", "partitioner"):
        monkeypatch.setattr(f"raddle.searches.hypergraph.{module}.perf_counter", time.thread_time)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What tests recorded as counts is added up and shown: how many plans were run, how many not."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        counts.update({name: n for name, n in report.user_properties if isinstance(n, int)})
    for name, count in sorted(counts.items()):
        terminalreporter.write_line(f"{name} {count}")


with contextlib.suppress(ImportError):
    import torch

    torch.set_num_threads(1)
