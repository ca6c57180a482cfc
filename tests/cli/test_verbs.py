"""Every schedule goes through every verb: plan, simulate, explain, report, verify and run.

Schedules are those of the registry, those whose steps overlap on any tiles, and a written one with a wait.
The batch does not divide evenly, so that micro-batches differ in what they send.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from test_session import launch  # noqa: F401 - a fixture
from typer.testing import CliRunner

from raddle.cli.main import app
from raddle.plans import schedules as named_schedules
from raddle.plans.pipelining import THREADED
from raddle.plans.schedules import NAMES
from raddle.program.lower import lower
from raddle.program.message_kind import Content, MessageKind
from raddle.program.program import Move, Program
from raddle.runtime.job import load_job
from raddle.searches.purposes import bytes_by_purpose
from raddle.simulation.timeline import simulate
from raddle.verification.traffic import _cluster

WRITTEN = "written"
ROWS = "F0.0 F1.0 B0.0 B1.0\nF0.1 B0.1 F1.1 B1.1\nF1.0 after B0.1\n"
SCHEDULES = (*NAMES, WRITTEN, THREADED, f"{THREADED}:2", f"{THREADED}:3:greedy")
STARTED = (
    "gems-basic",
    f"{THREADED}:3:greedy",
)  # run in processes; the others only with the slow tests
MODEL, BATCH, DEVICES = "mlp-tiny", 5, 2


def raddle(*words: object) -> str:
    """Run a verb and return its output; an exception of the verb is raised here."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("verbs")


@pytest.fixture
def plan(folder: pathlib.Path, schedule: str) -> pathlib.Path:
    """A plan with the given schedule, made once."""
    path = folder / f"{schedule.replace(':', '-')}.json"
    if not path.exists():
        options: list[object] = ["--method", "pipeline", "--stages", DEVICES]
        if schedule == WRITTEN:
            (folder / "rows.txt").write_text(ROWS)
            options += ["--schedule", folder / "rows.txt"]
        elif schedule.startswith(THREADED):
            options = ["--method", "layerwise", "--schedule", schedule]
        else:
            stages = DEVICES * named_schedules.SCHEDULES[schedule].chunks
            options = ["--method", "pipeline", "--stages", stages, "--microbatches", 2]
            options += ["--schedule", schedule]
        on = ("--cluster", f"local:{DEVICES}", "--batch", BATCH)
        raddle("plan", MODEL, *on, *options, "-o", path)
    return path


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_plan(plan: pathlib.Path, schedule: str) -> None:
    written = json.loads(plan.read_text())["schedule"]
    assert written.strip() == (ROWS.strip() if schedule == WRITTEN else schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_simulate_and_explain_agree(plan: pathlib.Path) -> None:
    simulated = json.loads(raddle("simulate", plan, "--json"))
    explained = json.loads(raddle("explain", plan, "--json"))
    assert sum(explained["plan"]["bytes"].values()) == simulated["comm_bytes"]
    assert raddle("explain", plan)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_explain_an_operator(plan: pathlib.Path) -> None:
    name = next(iter(json.loads(plan.read_text())["tiles"]))
    assert name in raddle("explain", plan, name)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_report(plan: pathlib.Path, tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.html"
    raddle("report", "--plan", plan, "-o", page, "--alternatives", 0)
    assert page.read_text().lstrip().startswith("<!")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_verify(plan: pathlib.Path, schedule: str) -> None:
    result = json.loads(raddle("verify", plan, "--threads", "--steps", 2, "--json"))
    assert result["holds"]
    waits = [check for check in result["checks"] if check["what"].startswith("schedule")]
    assert len(waits) == (schedule in ("gems-basic", WRITTEN)), "whose schedule has a wait"


@pytest.mark.parametrize(
    "schedule",
    [pytest.param(s, marks=() if s in STARTED else pytest.mark.slow) for s in SCHEDULES],
)
def test_run(launch: Any, plan: pathlib.Path) -> None:  # noqa: F811 - the fixture
    first, *others = launch(DEVICES, [plan, "--steps", 4, "--lr", 0.1, "--json"])
    assert [ended.code for ended in (first, *others)] == [0] * DEVICES, first.error
    assert json.loads(first.out)["steps"] == 4


# -- kinds of messages -------------------------------------------------------------------------------


def program_of(plan: pathlib.Path) -> Program:
    job = load_job(str(plan), device="meta")
    return lower(job.graph, job.plan)


@pytest.mark.parametrize("kind", MessageKind)
def test_every_kind_of_message_is_known_where_kinds_are_told_apart(kind: MessageKind) -> None:
    assert kind.content in Content
    assert kind.is_of_parameter in (False, True)
    assert kind.purpose.value
    assert f"{kind}" == str(kind) == kind.value == json.loads(json.dumps(kind))


@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if s in ("gems-basic", WRITTEN)])
def test_bytes_of_signals_are_told_apart(plan: pathlib.Path) -> None:
    program = program_of(plan)
    moves = [i for i in program.instructions if isinstance(i, Move)]
    signals = [m for i in moves if i.kind == MessageKind.SIGNAL for m in i.messages]
    purpose_bytes = bytes_by_purpose(program)
    assert (
        purpose_bytes["signals"]
        == len(signals) * program.element_bytes(program.graph.loss or "")
        > 0
    )
    timeline = simulate(program, _cluster(program.plan))
    assert sum(purpose_bytes.values()) == timeline.comm_bytes
