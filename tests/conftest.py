"""Hypothesis profiles, and one thread a test process: pytest-xdist already fills the cores."""

import contextlib
import os

from hypothesis import Phase, settings

settings.register_profile("ci", deadline=None, derandomize=True, max_examples=60, print_blob=True)
settings.register_profile(
    "fuzz", deadline=None, derandomize=False, max_examples=3000, print_blob=True
)
settings.register_profile(  # while working: quick, and it stops at the first failure as found
    "dev", deadline=None, derandomize=True, max_examples=20, phases=[Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

with contextlib.suppress(ImportError):
    import torch

    torch.set_num_threads(1)
