"""Each cost rule is written once: a change of it changes the simulation, the fast path and the searches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDERS = [str(HERE.parent / "program"), str(HERE.parents[1] / "src")]
SEARCH_RESULTS = {  # the result of a search that a rule also changes
    "roofline": "optcnn compute",
    "all-reduce": "optcnn sync",
}


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, float]]:
    env = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(FOLDERS)}
    command = [sys.executable, str(HERE / "mutating.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "rule",
    [
        "roofline", "memory", "link", "latency", "all-reduce", "host", "sum on a host", "merge",
        "compressed sum", "optimizer", "copy",
    ],
)  # fmt: skip
def test_changed_in_one_place_a_rule_changes_everywhere(
    rule: str, results: dict[str, dict[str, float]]
) -> None:
    before, after = results[""], results[rule]
    assert before["simulation"] == before["fast"]
    assert after["simulation"] == after["fast"]
    for what in ("simulation", *([SEARCH_RESULTS[rule]] if rule in SEARCH_RESULTS else [])):
        assert after[what] != before[what], what
