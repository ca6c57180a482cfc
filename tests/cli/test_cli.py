"""The command line: `--json` alone on stdout, one sentence and exit code 2 for bad input."""

from __future__ import annotations

import gzip
import io
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import pytest
from patience import HANG

from raddle.cli import main as cli


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def raddle(*args: str) -> Done:
    """The command line in this process: one of its own imports torch again, which takes seconds."""
    out, error, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        patch.setattr(sys, "argv", ["raddle", *args])
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Done(code, out.getvalue(), error.getvalue())


def test_models_lists_the_zoo() -> None:
    """As a shell starts it."""
    line = [sys.executable, "-m", "raddle", "models"]
    told = subprocess.run(
        [*line, "--json"], stdout=subprocess.PIPE, text=True, timeout=HANG, check=True
    )
    names = [row["name"] for row in json.loads(told.stdout)]
    assert {"vgg16", "vgg16-tiny", "resnet1001", "gpt"} <= set(names)
    assert raddle("models").stdout.split() == names
    wrong = subprocess.run(
        [*line, "vgg17"], capture_output=True, text=True, timeout=HANG, check=False
    )
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == raddle("models", "vgg17").stderr


def test_model_as_json_and_as_a_table() -> None:
    model = json.loads(raddle("models", "vgg16-tiny", "--batch", "6", "--json").stdout)
    assert model["batch"] == 6
    assert model["opaque"] == []
    assert model["params"] == sum(layer["params"] for layer in model["layers"])
    first = model["layers"][0]
    assert first["kind"] == "conv2d"
    assert first["split"] == "n S, c P, h A, w A, k R"
    table = raddle("models", "vgg16-tiny").stdout
    assert all(layer["name"] in table for layer in model["layers"])


def test_flops_are_those_of_the_papers() -> None:
    """torchvision prints 15.47 G multiply-adds for an image through vgg16."""
    model = json.loads(raddle("models", "vgg16", "--batch", "2", "--json").stdout)
    assert model["params"] == 138_357_544
    assert model["flops_forward"] / 2 / 2 == pytest.approx(15.47e9, rel=0.01)


def test_a_model_of_the_user_with_an_opaque_operator(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "class M(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.linalg.inv(x).sum()\n"
        "def build():\n"
        "    return M(), (torch.randn(3, 3),)\n"
    )
    model = json.loads(raddle("models", f"{file}:build", "--json").stdout)
    assert model["opaque"] == [{"op": "linalg_inv", "kind": "linalg_inv"}]
    assert "opaque" in raddle("models", f"{file}:build").stdout


ROW = {
    "method", "step_ms", "samples_per_s", "speedup", "comm_bytes", "peak_bytes", "imbalance", "search_s",
    "fits", "bn", "sync", "schedule", "stages", "microbatches", "lower_bound_ms",
}  # fmt: skip
SEARCHED = {"start", "proposals", "accepted", "stopped"}


@pytest.mark.usefixtures("own_seconds")
def test_compare_as_json_and_as_a_table() -> None:
    args = ("compare", "lenet-tiny", "--cluster", "p100:1x2", "--batch", "6", "--budget", "1")
    rows = json.loads(raddle(*args, "--json").stdout)
    methods = {row["method"]: row for row in rows}
    assert {"data", "model", "owt", "layerwise", "optcnn", "flexflow", "auto"} <= set(methods)
    assert all(set(row) - SEARCHED == ROW for row in rows)
    assert set(methods["auto"]) - ROW == SEARCHED
    assert methods["auto"]["step_ms"] == min(row["step_ms"] for row in rows)
    table = raddle(*args).stdout
    assert all(row["method"] in table for row in rows)


def test_compare_keeps_methods_that_cannot_be_applied() -> None:
    result = raddle(
        "compare", "lenet-tiny", "--cluster", "p100:4x4", "--methods", "data,model", "--json"
    )
    data, model = json.loads(result.stdout)
    assert result.returncode == 0
    assert (data["step_ms"], model["speedup"]) == (None, None)
    assert "a batch of 8 cannot be split over 16 devices" in data["error"]
    assert model["step_ms"] > 0


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The command line in this process: code, stdout, stderr."""

    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["raddle", *map(str, args)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def good_plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A plan file with irregular tiles, as text."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    options = ("--cluster", "p100:1x2", "--method", "channel-incremental", "-o", str(path))
    result = raddle("plan", "lenet-tiny", *options)
    assert result.returncode == 0, result.stderr
    return path.read_text()


@pytest.fixture
def plan_file(good_plan: str, tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "plan.json"
    path.write_text(good_plan)
    return path


@pytest.mark.parametrize(
    ("on", "method", "speedup"), [("p100:1x2", "data", "1.00x"), ("p100:4x4", "model", None)]
)
def test_a_plan_has_its_speedup_or_no_such_column(
    run: Callable[..., Any], on: str, method: str, speedup: str | None
) -> None:
    """Eight samples cannot be split over sixteen devices: there is nothing to compare with."""
    args = ("plan", "lenet-tiny", "--cluster", on, "--method", method)
    table, row = run(*args)[1], json.loads(run(*args, "--json")[1])
    assert (row["speedup"] is None) == (speedup is None)
    assert ("speedup" in table) == (speedup is not None)
    assert speedup is None or speedup in table


def test_plan_then_simulate(
    run: Callable[..., Any], plan_file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    again = ("lenet-tiny", "--cluster", "p100:1x2", "--method", "channel-incremental")
    row = json.loads(run("plan", *again, "--json")[1])
    assert set(row) == ROW | {"file"}
    trace = tmp_path / "t.json.gz"
    result = json.loads(run("simulate", plan_file, "--trace", trace, "--json")[1])
    for key in ("method", "step_ms", "comm_bytes", "peak_bytes", "imbalance"):
        assert result[key] == row[key]
    assert json.loads(plan_file.read_text())["predicted"]["step_ms"] == row["step_ms"]
    assert len(result["devices"]) == 2
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    code, table, _ = run("simulate", plan_file, "--cluster", "local:2")
    assert code == 0
    assert "lenet-tiny" in table
    assert "on local:2" in table
    lines = run("plan", *again, "--text")[1].splitlines()
    assert lines == [
        f"{op}: {tiles}" for op, tiles in json.loads(plan_file.read_text())["tiles"].items()
    ]


def test_plan_of_a_model_of_the_user(run: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    """Its function takes no batch, so the file's batch must not be asked for."""
    (tmp_path / "mine.py").write_text(
        "import torch\ndef build():\n    return torch.nn.Linear(4, 6), (torch.randn(5, 4),)\n"
    )
    path, spec = tmp_path / "plan.json", f"{tmp_path}/mine.py:build"
    assert run("plan", spec, "--cluster", "local:2", "--method", "model", "-o", path)[0] == 0
    assert run("simulate", path)[0] == 0
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "model": ""}))
    assert run("simulate", path)[0] == 2
    assert run("simulate", path, "--model", spec)[0] == 0


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
def test_bad_requests(run: Callable[..., Any], args: list[str], sentence: str) -> None:
    refused(run(*args), sentence)


def refused(result: tuple[int, str, str], sentence: str) -> None:
    code, out, error = result
    assert code == 2
    assert out == ""
    assert sentence in error
    assert error.startswith("raddle: ")
    assert error.count("\n") == 1


CONV = "[0:8 0:6 0:4 0:4 0:3 0:5 0:5]"  # all of features.3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: [], "no plan file of raddle: it has no key 'raddle'"),
        (lambda d: d | {"raddle": 99}, "has version 99, this raddle reads version 1: plan again"),
        (lambda d: {k: v for k, v in d.items() if k != "tiles"}, "is damaged: it lacks tiles"),
        (lambda d: d | {"tiles": []}, "is damaged: tiles is [], not an object"),
        (lambda d: d | {"devices": "two"}, "is damaged: devices is 'two', not a count"),
        (lambda d: d | {"microbatches": 9}, "it has 9 micro-batches of 8 samples"),
        (lambda d: d | {"dtype": "int8"}, "dtype is 'int8', not one of float64"),
        (lambda d: d | {"model": "lenet"}, "the plan was made for 'lenet' at batch 8"),
        (lambda d: d | {"model": "lenet-tini"}, "did you mean lenet-tiny"),
        (lambda d: d | {"batch": 9}, "not for 'lenet-tiny' at batch 9"),
        (lambda d: d | {"fingerprint": "0" * 16}, "plan again for this model"),
        (lambda d: d | {"cluster": {"name": "c"}}, "the cluster in "),
        (lambda d: d | {"cluster": None}, "names no cluster: add --cluster"),
        (lambda d: d | {"bn": "none"}, "bn is 'none'"),
        (lambda d: tiled(d, "features.9", "@0"), "which 'lenet-tiny' does not have"),
        (lambda d: tiled(d, "features.3", None), "are None, not a text"),
        (lambda d: tiled(d, "features.3", "n/2"), "names no devices"),
        (lambda d: tiled(d, "features.3", "n/2 @0-x"), "is no list of devices"),
        (lambda d: tiled(d, "features.3", "n/(4,) @0-1"), "is no split"),
        (lambda d: tiled(d, "features.3", "n/9 @0-8"), "cannot be split into 9 along n"),
        (lambda d: tiled(d, "features.3", "n/(4,3) @0-1"), "cover n from 0 to 7, not 0 to 8"),
        (lambda d: tiled(d, "features.3", "R/5 @0,0,0,0,0"), "along R: it is taken whole"),
        (lambda d: tiled(d, "features.3", "z/2 @0-1"), "has no dimension z"),
        (lambda d: tiled(d, "features.3", "@2"), "tile on device 2, but the plan has devices 0 to 1"),
        (lambda d: tiled(d, "features.3", "@0-999999999"), "are more than 65536 devices"),
        (lambda d: tiled(d, "features.3", "[0 1]@0"), "is no list of boxes"),
        (lambda d: tiled(d, "features.3", f"{CONV}@0 {CONV.replace('0:8', '0:4')}@1"), "overlap"),
        (lambda d: tiled(d, "features.3", f"{CONV.replace('0:8', '0:4')}@0"), "leave a hole"),
    ],
)  # fmt: skip
def test_damaged_plans(
    run: Callable[..., Any], plan_file: pathlib.Path, change: Callable[[Any], Any], sentence: str
) -> None:
    plan_file.write_text(json.dumps(change(json.loads(plan_file.read_text()))))
    refused(run("simulate", plan_file), sentence)


def tiled(data: dict[str, Any], op: str, tiles: object) -> dict[str, Any]:
    return data | {"tiles": data["tiles"] | {op: tiles}}


@pytest.mark.parametrize("keep", [0, 1, 100, 1000, -3])
def test_a_plan_file_that_was_cut_off(
    run: Callable[..., Any], plan_file: pathlib.Path, keep: int
) -> None:
    plan_file.write_text(plan_file.read_text()[:keep])
    refused(run("simulate", plan_file), "is no plan file: ")


def test_a_trace_that_cannot_be_written(run: Callable[..., Any], plan_file: pathlib.Path) -> None:
    refused(run("simulate", plan_file, "--trace", "."), "'.' cannot be written")
    refused(run("simulate", plan_file, "--trace", "no/t.gz"), "there is no folder for 'no/t.gz'")


def test_a_cluster_that_is_too_small(run: Callable[..., Any], plan_file: pathlib.Path) -> None:
    refused(
        run("simulate", plan_file, "--cluster", "p100:1x1"), "needs 2 devices, 'p100:1x1' has 1"
    )


@pytest.mark.parametrize(
    "args",
    [
        ["models", "vgg17"],
        ["models", "nowhere.py:f"],
        ["models", "vgg16", "--batch", "0"],
        ["modles"],
    ],
)
def test_bad_input(args: list[str]) -> None:
    result = raddle(*args)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.strip()


def test_explain_a_plan(run: Callable[..., Any], plan_file: pathlib.Path) -> None:
    found = json.loads(run("explain", plan_file, "--json")[1])
    simulated = json.loads(run("simulate", plan_file, "--json")[1])
    for key in ("step_ms", "comm_bytes", "peak_bytes", "imbalance"):
        assert found["plan"][key] == simulated[key]
    assert sum(found["plan"]["bytes"].values()) == found["plan"]["comm_bytes"]
    code, text, _ = run("explain", plan_file, "--cluster", "local:2")
    assert code == 0
    assert f"lenet-tiny, batch {found['batch']}, channel-incremental on local:2\n" in text
    assert "data parallel" in text
    assert "\x1b" not in text


def test_explain_an_operator(run: Callable[..., Any], plan_file: pathlib.Path) -> None:
    found = json.loads(run("explain", plan_file, "features.3", "--json")[1])
    assert found["op"] == found["group"]["anchor"] == "features.3"
    code, text, _ = run("explain", plan_file, "features.3")
    assert code == 0
    assert all(row["tiles"] in text for row in found["alternatives"])
    assert "one step on its own" in text
    code, text, _ = run("explain", plan_file, "features")
    assert code == 0
    assert "groups that are meant" in text


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["fetures.3"], "no operator 'fetures.3' in 'lenet-tiny': did you mean features.3"),
        ([""], "no operator '' in 'lenet-tiny', which has"),
        (["a\nb"], "no operator 'a\\nb' in 'lenet-tiny'"),
        (["--cluster", "p100:1x1"], "needs 2 devices, 'p100:1x1' has 1"),
        (["features.0", "--cluster", "p100:1x1"], "needs 2 devices, 'p100:1x1' has 1"),
        (["--cluster", "p101:1x2"], "no cluster 'p101:1x2'"),
        (["--model", "lenet"], "not for 'lenet'"),
        (["--profile", "nowhere.json"], "nowhere.json"),
    ],
)
def test_bad_explanations(
    run: Callable[..., Any], plan_file: pathlib.Path, args: list[str], sentence: str
) -> None:
    refused(run("explain", plan_file, *args), sentence)


def test_explain_what_is_no_plan(run: Callable[..., Any], plan_file: pathlib.Path) -> None:
    refused(run("explain", "nowhere.json"), "there is no plan file 'nowhere.json'")
    refused(run("explain", ".", "features.0"), "'.' cannot be read")
    data = json.loads(plan_file.read_text())
    plan_file.write_text(json.dumps(data | {"cluster": None}))
    refused(run("explain", plan_file), "names no cluster: add --cluster")
    plan_file.write_text("{}")
    refused(run("explain", plan_file), "it has no key 'raddle'")
