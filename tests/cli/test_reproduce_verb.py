"""`raddle reproduce`: the experiments are found in a checkout, and nowhere else."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from command_line import raddle
from timeouts import HANG

from raddle.cli.reproduce import experiments

ROOT = pathlib.Path(__file__).parents[2]


def reproduce(
    package: pathlib.Path, folder: pathlib.Path, *words: str
) -> subprocess.CompletedProcess[str]:
    """In another process, with the package of a folder, started in another folder."""
    return subprocess.run(
        [sys.executable, "-m", "raddle", "reproduce", *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(package)}, capture_output=True, text=True,
        timeout=HANG, check=False,
    )  # fmt: skip


@pytest.fixture
def alone(tmp_path: pathlib.Path) -> pathlib.Path:
    """The package as a wheel has it: without what stands beside it in a checkout."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "raddle", tmp_path / "site" / "raddle", ignore=ignored)
    return tmp_path / "site"


def test_from_a_checkout_in_any_folder(tmp_path: pathlib.Path) -> None:
    done = reproduce(ROOT / "src", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == raddle("reproduce").stdout
    assert "cost-models" in done.stdout


def test_a_package_alone_says_where_experiments_are(
    alone: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = reproduce(alone, tmp_path, "optcnn")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "raddle: the papers' experiments are not installed: clone raddle's repository and run "
        "`raddle reproduce` in its folder.\n"
    )


def test_a_package_alone_takes_the_experiments_of_the_checkout_that_it_is_started_in(
    alone: pathlib.Path,
) -> None:
    assert "cost-models" in reproduce(alone, ROOT).stdout


def test_ranks_find_experiments_wherever_they_are_started(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lab's namespaces and torchrun pass the environment on."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    experiments()
    experiments()  # once is enough
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(ROOT), str(ROOT / "src")]
    line = [sys.executable, "-c", "import experiments.links"]
    subprocess.run(line, cwd=tmp_path, timeout=HANG, check=True)


def test_no_wheel_has_experiments() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build == {"targets": {"wheel": {"packages": ["src/raddle"]}}}
    assert not list((ROOT / "src").rglob("experiments/experiment.py"))
