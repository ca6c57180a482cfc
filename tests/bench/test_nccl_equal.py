"""bench/runtime/nccl_equal.py: its cases use every kind of communication, and it needs torch alone."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from timeouts import LONG_HANG

from raddle.plans.sync import KINDS, read_sync
from raddle.program.checks.check import check
from raddle.program.collective_kind import Collective
from raddle.program.lower import lower

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "bench" / "runtime"
sys.path.insert(0, str(FOLDER))

import nccl_cases  # noqa: E402
import nccl_equal  # noqa: E402

# Not needed to run a plan. torch itself needs numpy, to gather objects.
HEAVY = ("numba", "yaml", "typer", "rich", "mtkahypar", "highspy")
KINDS_OF_MESSAGES = ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "scatter", "gather")


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_cases_can_run_and_use_every_kind(ranks: int) -> None:
    kinds: set[str] = set()
    cpu = torch.device("cpu")
    for case in nccl_cases.cases(ranks):
        graph = nccl_equal.captured(nccl_cases.BATCH // case.microbatches, cpu)
        program = lower(graph, case.make(graph, ranks))
        check(program)
        kinds.update(nccl_equal.collectives_of(program))
    assert kinds >= {
        str(c) for c in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    }
    if ranks == 4:
        assert kinds >= {f"messages: {kind}" for kind in KINDS_OF_MESSAGES}


def test_the_sync_kinds_are_all_that_are_synchronous() -> None:
    texts = nccl_cases.syncs(2)
    assert {text.partition(":")[0] for text in texts} == set(KINDS)
    assert all(read_sync(text).synchronous for text in texts)
    assert {"sharded:parameters", "p3:collective", "ps:sliced", "allreduce:bf16"} <= set(texts)


def test_a_deviation_is_not_equal() -> None:
    case = nccl_cases.Case("a case", lambda graph, ranks: None)
    good, bad = {"deviation": 1e-12, "groups": 3}, {"deviation": 1e-3, "groups": 2}
    assert nccl_equal.joined(case, [good, good])["equal"]
    row = nccl_equal.joined(case, [good, bad])
    assert (row["equal"], row["deviation"], row["groups"]) == (False, 1e-3, 3)
    assert not nccl_equal.joined(case, [good, {"error": "RuntimeError: fire"}])["equal"]
    assert nccl_equal.off(torch.ones(4), torch.zeros(4)) == 2.0


def test_it_runs_with_torch_alone(tmp_path: pathlib.Path) -> None:
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('{name} is not needed')\n")
    out = tmp_path / "equal.json"
    done = subprocess.run(
        [sys.executable, str(FOLDER / "nccl_equal.py"), "--ranks", "2", "--backend", "gloo",
         "--only", "pipeline, 1f1b", "-o", str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")])},
        capture_output=True, text=True, timeout=LONG_HANG, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    (run,) = report["runs"]
    (row,) = run["cases"]
    assert report["equal"]
    assert run["not_run"] == []
    assert row["errors"] == []
    assert row["groups"] == row["needed"] == 3
