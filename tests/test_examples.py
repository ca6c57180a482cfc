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


@pytest.mark.parametrize("model", ["cnn", "transformer"])
def test_a_loop_of_ones_own(model: str, tmp_path: Path) -> None:
    """Equal to plain PyTorch to the last digit printed, on 1 and 2 ranks, resumed on another number."""
    script = str(EXAMPLES / "own_loop.py")
    changed = [line for line in Path(script).read_text().splitlines() if line.endswith("# +")]
    assert len(changed) <= 6
    plain = run(script, model, "--plain")
    assert plain == run(script, model) == run(script, model, ranks=2)
    folder = str(tmp_path / "checkpoint")
    for first, then in ((1, 2), (2, 1)):
        halves = [
            run(script, model, "--epochs", "2", "--folder", f"{folder}{first}", ranks=ranks)
            for ranks in (first, then)
        ]
        assert "".join(halves) == plain


def test_a_loop_of_ones_own_under_autocast() -> None:
    script = str(EXAMPLES / "own_loop.py")
    assert run(script, "cnn", "--plain", "--autocast") == run(script, "cnn", "--autocast")


def test_digits_by_any_plan(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    script, plan = str(EXAMPLES / "digits.py"), str(tmp_path / "plan.json")
    owt = run(script, "--epochs", "1", "--method", "owt", "--save", plan, ranks=2)
    assert owt.startswith("epoch 0: loss 0.3")
    assert owt == run(script, "--epochs", "1", "--plan", plan, ranks=2)
    assert owt == run(script, "--epochs", "1", "--method", "spatial", ranks=3)
