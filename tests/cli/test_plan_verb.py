"""`raddle plan`: a plan by a method, in a file, as text or as figures."""

from __future__ import annotations

import gzip
import json
import pathlib

import pytest
from command_line import raddle, refused
from test_compare_verb import ROW


@pytest.mark.parametrize(
    ("on", "method", "speedup"), [("p100:1x2", "data", "1.00x"), ("p100:4x4", "model", None)]
)
def test_a_plan_has_its_speedup_or_no_such_column(
    on: str, method: str, speedup: str | None
) -> None:
    """Eight samples cannot be split over sixteen devices: there is nothing to compare with."""
    args = ("plan", "lenet-tiny", "--cluster", on, "--method", method)
    table, row = raddle(*args)[1], json.loads(raddle(*args, "--json")[1])
    assert (row["speedup"] is None) == (speedup is None)
    assert ("speedup" in table) == (speedup is not None)
    assert speedup is None or speedup in table


def test_plan_then_simulate(plan_file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    again = ("lenet-tiny", "--cluster", "p100:1x2", "--method", "channel-incremental")
    row = json.loads(raddle("plan", *again, "--json")[1])
    assert set(row) == ROW | {"file"}
    trace = tmp_path / "t.json.gz"
    result = json.loads(raddle("simulate", plan_file, "--trace", trace, "--json")[1])
    for key in ("method", "step_ms", "comm_bytes", "peak_bytes", "imbalance"):
        assert result[key] == row[key]
    assert json.loads(plan_file.read_text())["predicted"]["step_ms"] == row["step_ms"]
    assert len(result["devices"]) == 2
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    code, table, _ = raddle("simulate", plan_file, "--cluster", "local:2")
    assert code == 0
    assert "lenet-tiny" in table
    assert "on local:2" in table
    lines = raddle("plan", *again, "--text")[1].splitlines()
    assert lines == [
        f"{op}: {tiles}" for op, tiles in json.loads(plan_file.read_text())["tiles"].items()
    ]


def test_plan_of_a_model_of_the_user(tmp_path: pathlib.Path) -> None:
    """Its function takes no batch, so the file's batch must not be asked for."""
    (tmp_path / "mine.py").write_text(
        "import torch\ndef build():\n    return torch.nn.Linear(4, 6), (torch.randn(5, 4),)\n"
    )
    path, spec = tmp_path / "plan.json", f"{tmp_path}/mine.py:build"
    assert raddle("plan", spec, "--cluster", "local:2", "--method", "model", "-o", path)[0] == 0
    assert raddle("simulate", path)[0] == 0
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "model": ""}))
    assert raddle("simulate", path)[0] == 2
    assert raddle("simulate", path, "--model", spec)[0] == 0


PLAN = ["plan", "lenet-tiny", "--cluster", "p100:1x2", "--method", "data"]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ["plan", "lennet-tiny", *PLAN[2:]],
            "no model 'lennet-tiny' in the zoo: did you mean lenet",
        ),
        ([*PLAN[:-1], "dta"], "no method 'dta': choose data"),
        ([*PLAN[:3], "p101:1x2", *PLAN[4:]], "no cluster 'p101:1x2': did you mean p100"),
        ([*PLAN, "--bn", "none"], "bn is 'none': choose global or local"),
        ([*PLAN, "--sync", "gossip"], "sync is 'gossip': choose as in allreduce"),
        ([*PLAN, "--batch", "1"], "a batch of 1 cannot be split over 2 devices: ask for --batch 2"),
        ([*PLAN, "--batch", str(10**18)], "is too large: ask for at most"),
        ([*PLAN, "--text", "--json"], "ask for one of them"),
        ([*PLAN, "-o", "no/such/folder/p.json"], "there is no folder for 'no/such/folder/p.json'"),
        ([*PLAN, "-o", "."], "'.' cannot be written"),
        (["compare", "lenet-tiny", "--cluster", "local:2", "--methods", "data,,"], "no method ''"),
        (["simulate", "nowhere.json"], "there is no plan file 'nowhere.json'"),
        (["simulate", "."], "'.' cannot be read"),
    ],
)
def test_bad_requests(args: list[str], sentence: str) -> None:
    refused(raddle(*args), sentence)
