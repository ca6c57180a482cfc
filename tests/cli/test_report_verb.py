"""`raddle report`: a page with its figures as JSON, and one sentence for bad input."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from command_line import raddle
from timeouts import HANG

LENET = ("report", "lenet-tiny", "--cluster", "local:2")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("plans") / "owt.json")
    line = ["plan", "lenet-tiny", "--cluster", "local:2", "--method", "owt", "-o", path]
    assert raddle(*line).returncode == 0
    return path


def test_a_page_of_methods(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "page.html")
    done = raddle(*LENET, "--methods", "data, owt", "-o", path, "--progress", "--json")
    said = json.loads(done.stdout)
    assert [row["label"] for row in said["methods"]] == ["data", "owt"]
    assert said["file"] == path
    assert said["bytes"] == pathlib.Path(path).stat().st_size
    steps = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert steps[0]["step"] == "data"
    assert all(0 <= step["done"] <= step["of"] for step in steps)


def test_a_given_plan_stands_beside_data_parallel(plan: str, tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "page.html")
    done = raddle("report", "--plan", plan, "-o", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{path} shows it")
    labels = [line.split()[0] for line in done.stdout.splitlines()[1:3]]
    assert labels == ["data", "owt"]


def test_a_real_run_is_shown_beside_its_prediction(plan: str, tmp_path: pathlib.Path) -> None:
    trace, run = str(tmp_path / "t.json.gz"), tmp_path / "run.json"
    line = [sys.executable, "-m", "raddle", "run", plan, "--local", "--steps", "4", "--json"]
    line += ["--trace", trace]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=HANG, check=False)
    assert ran.returncode == 0, ran.stderr
    run.write_text(ran.stdout)
    done = raddle("report", "--run", str(run), "-o", str(tmp_path / "page.html"), "--json")
    assert done.returncode == 0, done.stderr
    data, owt = json.loads(done.stdout)["methods"]
    assert data["measured_ms"] is None
    assert owt["measured_ms"] == json.loads(ran.stdout)["step_ms"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("report",), "name a model and a cluster"),
        (("report", "lenet-tiny"), "name a model and a cluster"),
        ((*LENET, "--methods", "magic"), "magic"),
        ((*LENET, "-o", "no/such/folder/page.html"), "there is no folder"),
        ((*LENET, "--methods", "data", "-o", "/proc/page.html"), "cannot be written"),
        (("report", "--plan", "gone.json"), "there is no plan file"),
        (("report", "--run", "gone.json"), "there is no result of a run"),
        (("report", "--plan", "PLAN", "--batch", "3"), "leave out --batch"),
        (("report", "mlp-tiny", "--plan", "PLAN"), "was made for 'lenet-tiny'"),
        (("report", "--plan", "PLAN", "--cluster", "local:1"), "needs 2 devices"),
    ],
)
def test_bad_input_gets_one_sentence(
    words: tuple[str, ...], reason: str, plan: str, tmp_path: pathlib.Path
) -> None:
    words = tuple(plan if word == "PLAN" else word for word in words)
    given = words if "-o" in words else (*words, "-o", str(tmp_path / "page.html"))
    done = raddle(*given)
    assert done.returncode == 2, done.stderr
    assert reason in done.stderr
    assert done.stderr.startswith("raddle: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "page.html").exists()
