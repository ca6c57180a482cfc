"""The examples run, and print the same for every plan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from timeouts import HANG

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(*words: str, ranks: int = 1) -> str:
    line = [sys.executable]
    if ranks > 1:
        line += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*line, *words], capture_output=True, text=True, timeout=HANG, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plain_pytorch_and_raddle_side_by_side() -> None:
    script = str(EXAMPLES / "side_by_side.py")
    assert run(script) == run(script, ranks=2)


def test_digits_by_any_plan(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    script, plan = str(EXAMPLES / "digits.py"), str(tmp_path / "plan.json")
    owt = run(script, "--epochs", "1", "--method", "owt", "--save", plan, ranks=2)
    assert owt.startswith("epoch 0: loss 0.3")
    assert owt == run(script, "--epochs", "1", "--plan", plan, ranks=2)
    assert owt == run(script, "--epochs", "1", "--method", "spatial", ranks=3)
