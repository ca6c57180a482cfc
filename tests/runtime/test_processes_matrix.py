"""Ranks that are processes (gloo) train as the plain module does: a selection of models, methods and ranks.

`make verify-all` runs all combinations.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from equality import TINY
from timeouts import LONG_HANG
from verify_all import ALL, RANKS, SEARCHED_METHODS, SOME, SOME_SEARCHED

from raddle.searches.baselines import BASELINES

SCRIPT = Path(__file__).with_name("verify_all.py")


@pytest.mark.parametrize(
    ("which", "count"),
    [("some", len(SOME)), pytest.param("searched", len(SOME_SEARCHED), marks=pytest.mark.slow)],
)
def test_trains_as_the_plain_module_does(which: str, count: int, record_property: Any) -> None:
    """The script runs in a separate process, as it forks ranks: torch forbids forks after a backward."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), f"--{which}", "--json"],
        capture_output=True, text=True, timeout=LONG_HANG, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    outcomes = json.loads(done.stdout)
    record_property(f"plans on processes, {which}: run", outcomes["ok"])
    record_property(f"plans on processes, {which}: skipped", outcomes["skipped"])
    assert outcomes == {"ok": count, "skipped": 0, "failed": 0, "failures": []}
    assert done.returncode == 0


def test_the_selection_covers_pairs() -> None:
    assert {(case.model, case.ranks) for case in SOME} == set(product(TINY, RANKS))
    assert {(case.method, case.ranks) for case in SOME} == set(product(BASELINES, RANKS))
    assert len(SOME) == 60
    assert {case.model for case in SOME_SEARCHED} == set(TINY)
    assert {case.method for case in SOME_SEARCHED} == {*SEARCHED_METHODS}
    assert len(ALL) == 579
