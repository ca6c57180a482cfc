"""`raddle verify` accepts correct plans, and says what is wrong with a damaged run."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from timeouts import HANG, wait_until

from raddle import zoo
from raddle.cli import main as cli
from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans import plan_file
from raddle.plans.notation import read_tiling
from raddle.runtime.execution.parameter_updater import ParameterUpdater
from raddle.searches.planning import plan_for
from raddle.transport.thread_transport import ThreadTransport
from raddle.verification import plain_training, verify_plan
from raddle.verification.verify_plan import verify


@cache
def captured(model: str) -> Graph:
    work = zoo.load(model)
    return capture(work.model, work.batch, work.loss, name=work.name)


@pytest.fixture
def write_plan(tmp_path: pathlib.Path) -> Callable[..., str]:
    def write(
        model: str, method: str, devices: int, fields: dict[str, Any] | None = None, **more: Any
    ) -> str:
        graph = captured(model)
        made = plan_for(graph, cluster(f"local:{devices}"), method, model=model, **more)
        path = tmp_path / "plan.json"
        plan_file.save(replace(made, **(fields or {})), graph, path)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("model", "method", "devices", "more"),
    [
        ("lenet-tiny", "spatial", 3, {}),
        ("mlp-tiny", "model", 2, {"optimizer": "adam", "sync": "server"}),
        ("gpt-tiny", "owt", 2, {}),  # dropout, in attention too
        ("rnnlm-tiny", "data", 2, {}),  # dropout between the layers of an LSTM
        ("resnet110-tiny", "data", 3, {"bn": "local", "optimizer": "momentum"}),
        ("resnet110-tiny", "spatial", 2, {"bn": "local"}),
        ("resnet110-tiny", "data", 2, {"bn": "global"}),
        ("resnet110-tiny", "data", 2, {"fields": {"microbatches": 2, "batch": 16}}),
        ("gpt-tiny", "layerwise", 2, {"fields": {"microbatches": 3, "batch": 18}}),
    ],
)
def test_it_holds(write_plan: Any, model: str, method: str, devices: int, more: Any) -> None:
    result = verify(write_plan(model, method, devices, **more), threads=True, steps=2)
    assert result["failure"] is None
    assert [check for check in result["checks"] if not check["holds"]] == []
    assert result["holds"]
    assert result["losses"] == pytest.approx(result["plain_losses"], rel=1e-9)
    names = [check["what"] for check in result["checks"]]
    assert names[:3] == ["loss", "gradients", "parameters"]
    assert ("buffers" in names) == ("resnet" in model)
    assert result["bn"] == more.get("bn", "local")
    for row in result["sent"]:
        assert row["transport"] == row["program"] == row["simulator"] > 0


MASKS = """
import torch
from torch import nn

class Attention(nn.Module):
    # a dropout inside nn.MultiheadAttention, and two more, one of them of features
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        self.features, self.drop = nn.Dropout1d(0.2), nn.Dropout(0.4)
        self.end = nn.Linear(8, 3)

    def forward(self, x):  # [n t c]
        y = self.attention(x, x, x, need_weights=False)[0]
        return self.end(self.drop(torch.relu(self.features(y))))

def build():
    return Attention(), (torch.randn(4, 5, 8),)
"""


def test_it_holds_for_masks_deep_inside(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.py").write_text(MASKS)
    name = f"{tmp_path}/mine.py:build"
    graph = captured(name)
    assert sum("stream" in op.attrs for op in graph.ops) == 3
    path = tmp_path / "plan.json"
    plan_file.save(plan_for(graph, cluster("local:2"), "data", model=name), graph, path)
    assert verify(str(path), threads=True)["holds"]


STOCHASTIC_DEPTH = """
import torch
from torch import nn

class Blocks(nn.Module):
    # stochastic depth as timm, torchvision and transformers draw it, and noise
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.end = nn.Linear(8, 3)

    def forward(self, x):  # [n t c]
        shape = (x.shape[0], 1, 1)
        torch.rand([])
        x = x + torch.relu(self.layers[0](x)) * x.new_empty(shape).bernoulli_(0.6) / 0.6
        x = x + torch.relu(self.layers[1](x)) * torch.empty(shape, dtype=x.dtype).bernoulli_(0.7)
        x = x + torch.relu(self.layers[2](x)) * (0.5 + torch.rand(shape, dtype=x.dtype)).floor_()
        return self.end(self.layers[3](x) + 0.1 * torch.randn_like(x))

def build(batch=12):
    return Blocks(), (torch.randn(batch, 5, 8),)
"""


@pytest.mark.parametrize(
    ("method", "devices", "fields"),
    [
        ("data", 2, {}),
        ("data", 3, {}),
        ("layerwise", 2, {}),
        ("model", 2, {}),
        ("data", 2, {"microbatches": 3, "batch": 36}),
    ],
)
def test_stochastic_depth(
    tmp_path: pathlib.Path, method: str, devices: int, fields: dict[str, Any]
) -> None:
    (tmp_path / "mine.py").write_text(STOCHASTIC_DEPTH)
    name = f"{tmp_path}/mine.py:build"
    graph = captured(name)
    drawn = [op for op in graph.ops if op.kind == "draw"]
    assert [graph.dim_kinds(op)[0] for op in drawn] == ["S"] * 4
    plan = plan_for(graph, cluster(f"local:{devices}"), method, model=name)
    path = tmp_path / "plan.json"
    plan_file.save(replace(plan, **fields), graph, path)
    result = verify(str(path), threads=True, steps=2)
    assert [check for check in result["checks"] if not check["holds"]] == []
    assert result["holds"]


# -- errors are detected -----------------------------------------------------------------------------


def off_by_little(self: Any, weights: Any, gradients: Any) -> None:
    gradients = [None if g is None else g * (1 + 1e-6) for g in gradients]
    accumulate(self, weights, gradients)


accumulate = ParameterUpdater.accumulate


def test_a_gradient_that_is_off_by_a_millionth(
    write_plan: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(ParameterUpdater, "accumulate", off_by_little)
    path = write_plan("mlp-tiny", "data", 2)
    code, out, _ = run(capsys, monkeypatch, path, "--threads", "--json")
    assert code == 1
    checks = {check["what"]: check for check in json.loads(out)["checks"]}
    assert not checks["gradients"]["holds"]
    assert checks["gradients"]["deviation"] == pytest.approx(1e-6, rel=0.5)
    assert "step" in checks["gradients"]["where"]
    assert checks["bytes by pair: transport = program"]["holds"]
    code, out, _ = run(capsys, monkeypatch, path, "--threads", "--tolerance", "1e-3")
    assert code == 0
    assert out.endswith("it holds\n")


def test_local_statistics_are_not_global_ones(
    write_plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_training, "LocalStatistics", lambda *args: None)
    result = verify(write_plan("resnet110-tiny", "data", 2, bn="local"), threads=True, steps=1)
    assert not result["holds"]
    assert not any(check["holds"] for check in result["checks"][:3])


def test_bytes_that_nobody_planned(write_plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    send = ThreadTransport.send

    def send_and_count(self: Any, target: int, *arguments: Any) -> Any:
        self.sent[target] += 1
        return send(self, target, *arguments)

    monkeypatch.setattr(ThreadTransport, "send", send_and_count)
    result = verify(write_plan("mlp-tiny", "model", 2), threads=True, steps=1)
    wrong = [check for check in result["checks"] if not check["holds"]]
    assert [check["what"] for check in wrong] == ["bytes by pair: transport = program"]
    assert not result["holds"]


def test_a_rank_that_fails(write_plan: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def fail(self: Any, *args: Any) -> None:
        raise ArithmeticError("no more numbers")

    monkeypatch.setattr(ParameterUpdater, "accumulate", fail)
    code, out, _ = run(capsys, monkeypatch, write_plan("mlp-tiny", "data", 2), "--threads")
    assert code == 1
    assert "failed: ArithmeticError: no more numbers" in out
    assert out.endswith("it does NOT hold\n")


# -- plans that cannot be verified -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere.json"], "there is no plan file 'nowhere.json'"),
        (["PLAN", "--tolerance", "nan"], "--tolerance is nan"),
        (["PLAN", "--model", "gpt-tiny"], "the plan was made for 'mlp-tiny'"),
    ],
)
def test_bad_requests(
    write_plan: Any, words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    path = write_plan("mlp-tiny", "data", 2)
    code, out, error = run(capsys, monkeypatch, *(path if w == "PLAN" else w for w in words))
    assert (code, out) == (2, "")
    assert sentence in error


def test_a_plan_that_is_too_large_for_this_machine(
    write_plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_plan, "memory", lambda: 1000)
    with pytest.raises(InputError, match="bytes in float64, this machine has 1,000: verify on a"):
        verify(write_plan("mlp-tiny", "data", 2))


def test_numbers_drawn_by_an_operator_of_its_own(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class M(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.fc = torch.nn.Linear(4, 2)\n"
        "    def forward(self, x):\n"
        "        return self.fc(x + torch.poisson(torch.ones(4))).sum()\n"
        "def build(): return M(), (torch.randn(4, 4),)\n"
    )
    name = f"{tmp_path}/mine.py:build"
    path = tmp_path / "plan.json"
    plan_file.save(
        plan_for(captured(name), cluster("local:2"), "model", model=name), captured(name), path
    )
    with pytest.raises(InputError, match="draws random numbers"):
        verify(str(path), threads=True)


def test_local_statistics_without_a_serial_reference(tmp_path: pathlib.Path) -> None:
    """Two devices normalise the same samples, each with the statistics of another half of them."""
    (tmp_path / "mine.py").write_text(
        "import torch\ndef build():\n    return torch.nn.BatchNorm1d(3), (torch.randn(4, 3),)\n"
    )
    name = f"{tmp_path}/mine.py:build"
    graph = captured(name)
    tiles = {op.name: "@0" for op in graph.ops}
    norm = next(op.name for op in graph.ops if op.kind == "batch_norm")
    tiles |= {f"{norm}.moments": "n/2 @0-1", norm: "x2 @0-1"}
    made = plan_for(graph, cluster("local:2"), "data", model=name, bn="local")
    made = replace(made, tiles={op.name: read_tiling(op, tiles[op.name]) for op in graph.ops})
    path = tmp_path / "plan.json"
    plan_file.save(made, graph, path)
    result = verify(str(path), threads=True)
    assert result["holds"]
    assert result["bn"] == "global"
    assert result["notes"][0].startswith("bn: local has no serial reference for this plan")


# -- processes ---------------------------------------------------------------------------------------


def run(capsys: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    """Run `raddle verify` in this process; return exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["raddle", "verify", *words])
    monkeypatch.setattr(signal, "signal", lambda *args: None)
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = int(end.code or 0)
    return code, *capsys.readouterr()


DAMAGED = """
import os, time
from raddle import zoo
from raddle.runtime.execution.parameter_updater import ParameterUpdater
from raddle.runtime.executor import Executor

accumulate, run = ParameterUpdater.accumulate, Executor.run

def off(self, weights, gradients):
    accumulate(self, weights, [None if g is None else g * (1 + 1e-6) for g in gradients])

def wait(self, feed, step, **more):
    time.sleep(10_000)

def hurry(self, feed, step, **more):
    # The ranks are connected: from here on, a timeout of one second is enough.
    self.transport.failures.set_timeout(1.0)
    return run(self, feed, step, **more)

def build(batch=8):
    if os.environ.get("RANK") == "1":
        {attribute} = {function}
    if os.environ.get("RANK") == "0" and {hurried}:
        Executor.run = hurry
    return zoo.load("mlp-tiny", batch=batch, device="cpu")
"""


def write_damaged_plan(
    folder: pathlib.Path, attribute: str, function: str, *, hurried: bool = False
) -> str:
    """Write a plan whose model file replaces a function in rank 1 only; return the path of the plan.

    hurried: rank 0 waits only one second for others.
    """
    (folder / "damaged.py").write_text(
        DAMAGED.format(attribute=attribute, function=function, hurried=hurried)
    )
    name = f"{folder}/damaged.py:build"
    graph = captured(name)
    path = folder / "plan.json"
    plan_file.save(plan_for(graph, cluster("local:2"), "data", model=name), graph, path)
    return str(path)


def test_processes_hold(write_plan: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    code, out, _ = run(
        capsys, monkeypatch, write_plan("lenet-tiny", "owt", 2), "--json", "--steps", "2"
    )
    result = json.loads(out)
    assert (code, result["holds"], result["transport"]) == (0, True, "processes")
    assert len(result["losses"]) == 2
    assert not ranks_of(os.getpid())


def test_a_process_that_is_wrong(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    path = write_damaged_plan(tmp_path, "ParameterUpdater.accumulate", "off")
    code, out, _ = run(capsys, monkeypatch, path, "--json", "--steps", "1")
    assert code == 1
    wrong = [check["what"] for check in json.loads(out)["checks"] if not check["holds"]]
    assert wrong == ["gradients", "parameters"]


@pytest.mark.parametrize(
    "how", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_nothing_is_left_when_it_is_interrupted(
    tmp_path: pathlib.Path, how: signal.Signals
) -> None:
    path = write_damaged_plan(tmp_path, "Executor.run", "wait")
    process = subprocess.Popen([sys.executable, "-m", "raddle", "verify", path])
    try:
        wait_until(lambda: len(ranks_of(process.pid)) == 2)
        ranks = ranks_of(process.pid)
        process.send_signal(how)
        assert process.wait(HANG) == (128 + how if how == signal.SIGTERM else -how)
        wait_until(lambda: not any(map(alive, ranks)))
    finally:
        process.kill()


def test_ranks_that_wait_for_ever_are_ended(tmp_path: pathlib.Path) -> None:
    path = write_damaged_plan(tmp_path, "Executor.run", "wait", hurried=True)
    result = verify(path, steps=1)
    assert not result["holds"]
    assert "rank 0 has waited" in result["failure"]
    assert not ranks_of(os.getpid())


def ranks_of(verifier: int) -> set[int]:
    """Return the ids of the rank processes that a verifying process has started through torchrun."""
    ranks = set()
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            above = int(
                pathlib.Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1]
            )
        except (OSError, IndexError, ValueError):  # it has just ended
            continue
        if b"raddle.verification.rank" in words and above == verifier:
            ranks.add(int(entry.name))
    return ranks


def alive(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
