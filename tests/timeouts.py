"""How long tests wait before they fail. No test asserts how long something took: `bench/` measures that.

A limit here only ends a hang. It is at least ten times the usual time on an idle machine. No result depends
on it: a wait ends when its condition holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

HANG = 300.0  # seconds; for anything that takes up to half a minute
LONG_HANG = 1800.0  # seconds; for a whole matrix of cases, which may take three minutes


def wait_until(condition: Callable[[], object]) -> None:
    """Waits until a condition holds, which another thread or process makes true."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, f"still not so after {HANG:.0f} s"
        time.sleep(0.02)
