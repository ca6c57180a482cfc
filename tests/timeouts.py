"""How long tests wait. No test asserts how long something took: `bench/` measures, on a quiet machine.

A limit here only ends a hang. It is at least ten times what is waited for on an idle machine, and nothing
depends on it: a wait ends when what it waits for has happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable

HANG = 300.0  # seconds: for anything that takes up to half a minute
LONG_HANG = 1800.0  # seconds: for a whole matrix of cases, which may take three minutes


def wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as a condition holds that another thread or process brings about."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, f"still not so after {HANG:.0f} s"
        time.sleep(0.02)
