"""Hypothesis profiles, and one thread a test process: pytest-xdist already fills the cores."""

import contextlib
import os
from collections import Counter
from typing import Any

from hypothesis import Phase, settings

settings.register_profile("ci", deadline=None, derandomize=True, max_examples=50, print_blob=True)
settings.register_profile(
    "fuzz", deadline=None, derandomize=False, max_examples=3000, print_blob=True
)
settings.register_profile(  # while working: quick, and it stops at the first failure as found
    "dev", deadline=None, derandomize=True, max_examples=20, phases=[Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


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
