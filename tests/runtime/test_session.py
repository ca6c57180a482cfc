"""Tests of `python -m raddle.runtime`: ranks train and measure; or all exit, and one prints why.

Ranks are processes that join as with torchrun; they are forked from a process that has imported torch.
"""

from __future__ import annotations

import copy
import gzip
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from timeouts import HANG

from raddle import zoo
from raddle.api.launching import Machines, choose_device, torchrun_arguments
from raddle.cli import main as cli
from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans import plan_file
from raddle.program.program import Gather, Move, Reduce, buffer_bytes, message_bytes
from raddle.runtime import clocks, session
from raddle.runtime.execution.compiled_functions import NotCompiled
from raddle.runtime.job import load_job, optimizer_for
from raddle.runtime.measured_trace import trace_events
from raddle.runtime.options import Options, parse
from raddle.runtime.recorder import RecordedInterval
from raddle.runtime.step_times import StepTimes, measured_steps
from raddle.runtime.trainer import Trainer
from raddle.searches.comparison import plan_and_predict
from raddle.transport.thread_transport import Hub


@cache
def captured(model: str) -> Graph:
    work = zoo.load(model)
    return capture(work.model, work.batch, work.loss, name=work.name)


class ExitedRank(NamedTuple):
    code: int
    out: str
    error: str


def rank(number: int, size: int, port: int, folder: pathlib.Path, argv: list[str]) -> None:
    """The main function of one rank's process, with the environment of torchrun."""
    variables = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({k: str(v) for k, v in variables.items()}, MASTER_PORT=str(port))
    os.environ["MASTER_ADDR"] = "localhost"
    for descriptor, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(folder / f"{name}{number}", os.O_CREAT | os.O_WRONLY), descriptor)
    sys.exit(session.main(argv))


@pytest.fixture
def launch(tmp_path: pathlib.Path) -> Callable[..., list[ExitedRank]]:
    """A function that runs ranks until they exit. argv: a list, or a function of the rank."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["raddle.runtime.session", "torch._export.non_strict_utils"])

    def run(size: int, argv: Any) -> list[ExitedRank]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = argv if callable(argv) else lambda number: argv
        processes = [
            context.Process(target=rank, args=(r, size, port, tmp_path, list(map(str, words(r)))))
            for r in range(size)
        ]
        for process in processes:
            process.start()
        deadline = time.monotonic() + HANG
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [r for r, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
        assert not late, f"ranks {late} have not ended"
        texts = [
            [(tmp_path / f"{n}{r}").read_text() for n in ("out", "error")] for r in range(size)
        ]
        return [ExitedRank(p.exitcode, *text) for p, text in zip(processes, texts, strict=True)]

    return run


@pytest.fixture
def plan(tmp_path: pathlib.Path) -> Callable[..., str]:
    """A function that writes a plan file for some local devices and returns its path."""

    def write(model: str, method: str, devices: int, **more: Any) -> str:
        graph = captured(model)
        chosen_plan, *_ = plan_and_predict(
            graph, cluster(f"local:{devices}"), method, model=model, **more
        )
        path = tmp_path / f"{model}-{method}-{devices}.json"
        plan_file.save(chosen_plan, graph, path)
        return str(path)

    return write


KEYS = {
    "plan", "model", "method", "batch", "devices", "device", "threads", "dtype", "optimizer", "steps",
    "warmup", "step_ms", "fastest_ms", "slowest_ms", "predicted_ms", "cluster", "samples_per_s",
    "compile_s", "measured", "loss_first", "loss_last", "sent", "reduced", "trace", "sync", "groups",
    "slices", "overtaken",
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "method", "devices"),
    [("mlp-tiny", "data", 1), ("gpt-tiny", "owt", 2), ("mlp-tiny", "model", 3)],
)
def test_ranks_train_and_rank_0_reports(
    launch: Any, plan: Any, model: str, method: str, devices: int
) -> None:
    path = plan(model, method, devices)
    first, *others = launch(devices, [path, "--steps", 6, "--lr", 0.1, "--json"])
    assert [e.code for e in (first, *others)] == [0] * devices, first.error
    assert [(e.out, e.error) for e in others] == [("", "")] * (devices - 1)
    summary = json.loads(first.out)
    assert set(summary) == KEYS
    # Over gloo, three groups of all ranks: sums, broadcasts, messages; a single process has none.
    assert summary["groups"]["count"] >= (3 if devices > 1 else 0)
    assert summary["loss_last"] < summary["loss_first"]
    assert (
        summary["predicted_ms"]
        == json.loads(pathlib.Path(path).read_text())["predicted"]["step_ms"]
    )
    assert summary["fastest_ms"] <= summary["step_ms"] <= summary["slowest_ms"]
    assert {(r["source"], r["target"]): r["bytes"] for r in summary["sent"]} == bytes_by_pair(path)
    assert [summary[key] for key in ("steps", "warmup", "measured", "compile_s")] == [6, 3, 3, 0]
    assert [line.split()[:2] for line in first.error.splitlines()] == [
        ["step", f"{k}/6"] for k in range(1, 7)
    ]


@pytest.mark.parametrize(
    ("sync", "precision"),
    [
        ("allreduce", "bf16"),
        ("allreduce", "fp16"),
        ("sharded", "bf16:pure"),
        ("sharded:parameters", "bf16,gather=bf16,reduce=float32"),
        ("p3", "bf16"),
    ],
)
def test_processes_train_in_the_precision_that_threads_do(
    launch: Any, plan: Any, sync: str, precision: str
) -> None:
    path = plan("mlp-tiny", "data", 2)
    content = json.loads(pathlib.Path(path).read_text())
    pathlib.Path(path).write_text(json.dumps({**content, "sync": sync}))
    words = [path, "--steps", 4, "--lr", 0.1, "--json", "--precision", precision]
    first, second = launch(2, words)
    assert [first.code, second.code] == [0, 0], first.error
    summary, job = json.loads(first.out), load_job(path, precision=precision)
    hub = Hub(2, timeout=HANG)

    def train(number: int) -> list[float]:
        trainer = Trainer(
            copy.deepcopy(job.workload.model), job.program, optimizer_for(job.plan.optimizer, 0.1),
            hub.transport(number), torch.device("cpu"), loss=job.workload.loss,
        )  # fmt: skip
        losses = [float(trainer.step(job.workload.batch)) for _ in range(4)]
        trainer.close()
        return losses

    with ThreadPoolExecutor(2) as threads:
        losses = list(threads.map(train, range(2)))
    assert losses[0] == losses[1]
    assert [summary["loss_first"], summary["loss_last"]] == pytest.approx(
        [losses[0][0], losses[0][-1]], rel=1e-3
    )
    expected: dict[str, int] = {}
    for i in job.program.instructions:
        if isinstance(i, Reduce | Gather):
            kind = "all_gather" if isinstance(i, Gather) else i.collective.name.lower()
            expected[kind] = expected.get(kind, 0) + sum(buffer_bytes(job.program, i).values())
    reduced = {r["collective"]: r["bytes"] for r in summary["reduced"]}
    # fp16 also adds up whether gradients are infinite: one number
    assert reduced == {
        kind: n + 4 * (precision == "fp16" and kind == "all_reduce") for kind, n in expected.items()
    }


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_compiling_is_reported_and_is_no_part_of_a_step(launch: Any, plan: Any) -> None:
    path = plan("mlp-tiny", "data", 1)
    ended = [
        launch(1, [path, "--steps", 4, "--warmup", 0, "--json", *words])[0]
        for words in ([], ["--compile", "on"])
    ]
    assert [e.code for e in ended] == [0, 0], ended[1].error
    eager, compiled = (json.loads(e.out) for e in ended)
    assert eager["compile_s"] == 0 < compiled["compile_s"]
    assert (eager["measured"], compiled["measured"]) == (4, 3)  # without the step that compiled
    assert compiled["loss_last"] == pytest.approx(eager["loss_last"], rel=1e-5)


def test_steps_in_which_any_rank_compiled_are_not_measured() -> None:
    assert measured_steps([4, 3, 2, 1], [[0, 0, 0, 0], [9, 0, 9, 0]], 0) == [3, 1]
    assert measured_steps([4, 3, 2, 1], [[9, 0, 0, 0]], 2) == [2, 1]
    assert measured_steps([4, 3], [[9, 9]], 1) == [3]  # there are no others
    times = StepTimes([], [], [])
    times.add(2, [0.5, 0.4], 10, 6)
    assert times == ([0.5, 0.4], [2, 2], [3, 3])


def bytes_by_pair(path: str) -> dict[tuple[int, int], int]:
    program, total = load_job(path, device="meta").program, dict[tuple[int, int], int]()
    for move in (i for i in program.instructions if isinstance(i, Move)):
        for m in move.messages:
            nbytes = message_bytes(program, move, m)
            total[m.source, m.target] = total.get((m.source, m.target), 0) + nbytes
    return total


def test_a_trace_has_the_lanes_of_a_simulated_one(
    launch: Any, plan: Any, tmp_path: pathlib.Path
) -> None:
    trace = tmp_path / "t.json.gz"
    path = plan("lenet-tiny", "spatial", 3)
    ended = launch(3, [path, "--steps", 5, "--warmup", 3, "--trace", trace])
    assert [e.code for e in ended] == [0] * 3, ended[0].error
    assert f"trace      {trace}" in ended[0].out
    assert "measured" in ended[0].out
    assert "predicted" in ended[0].out
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    for d in range(3):
        assert names["process_name", d, 0] == f"device {d} (cpu)"
        assert names["thread_name", d, 0] == "compute"
    assert names["process_name", 3, 0] == "links"
    pairs = {f"{s} -> {t}" for s, t in bytes_by_pair(path)}
    lanes = {name for (what, pid, _), name in names.items() if (what, pid) == ("thread_name", 3)}
    assert lanes - {"sum of 0, 1, 2"} == pairs
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["pid"] for e in slices} == {0, 1, 2, 3}
    assert {e["args"]["step"] for e in slices} == {3, 4}  # the steps after the warm-up
    tails, heads = ({e["id"]: e for e in events if e["ph"] == ph} for ph in "sf")
    assert tails.keys() == heads.keys()
    messages = [e for e in slices if e["pid"] == 3 and e["cat"] == "move"]
    assert len(messages) == len(tails)
    sent = sum(e["args"]["bytes"] for e in messages)
    assert sent == 2 * sum(bytes_by_pair(path).values())
    for number, tail in tails.items():
        assert tail["ts"] <= heads[number]["ts"] + 1


def test_all_ranks_refuse_a_wrong_number_of_ranks(launch: Any, plan: Any) -> None:
    ended = launch(2, [plan("mlp-tiny", "data", 3)])
    assert [e.code for e in ended] == [2, 2]
    assert ended[0].error == (
        "raddle: the plan needs 3 ranks, this job has 2: re-plan with --cluster local:2, or launch 3.\n"
    )
    assert [e.error for e in ended[1:]] == [""]  # rank 0 has printed the same sentence


def test_a_rank_that_refuses_alone_says_so(launch: Any, plan: Any) -> None:
    path = plan("mlp-tiny", "data", 2)
    ended = launch(2, lambda number: [path if number == 0 else "nowhere.json"])
    assert [e.code for e in ended] == [2, 2]
    assert ended[0].error == ""
    assert ended[1].error == "raddle: rank 1: there is no plan file 'nowhere.json'.\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere.json"], "there is no plan file 'nowhere.json'"),
        (["PLAN", "--steps", "0"], "--steps is 0: take at least one"),
        (["PLAN", "--warmup", "20"], "--warmup 20 leaves none of 20 steps to measure"),
        (["PLAN", "--steps", "x"], "argument --steps: invalid int value: 'x'"),
        (["PLAN", "--lr", "nan"], "--lr is nan: give a positive number"),
        (["PLAN", "--device", "tpu"], "argument --device: invalid choice"),
        (["PLAN", "--trace", "no/such/t.json"], "there is no folder for 'no/such/t.json'"),
        (["PLAN", "--model", "lenet-tiny"], "the plan was made for 'mlp-tiny'"),
    ],
)
def test_bad_requests(
    plan: Any, words: list[str], sentence: str, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session runs in this process, as a job of one rank."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
        monkeypatch.delenv(name)
    path = plan("mlp-tiny", "data", 1)
    assert session.main([path if w == "PLAN" else w for w in words]) == 2
    out, error = capfd.readouterr()
    assert out == ""
    assert error.startswith("raddle: ")
    assert error.count("\n") == 1
    assert sentence in error
    assert not torch.distributed.is_initialized()


BROKEN = """
import os, time
from raddle import zoo
from raddle.runtime.executor import Executor
from raddle.transport import failures
from raddle.transport.failure_channel import FailureChannel

whole, report = Executor.run, FailureChannel.report

def late(self, rank, reason):  # others see a closed connection before they get the reason
    if os.environ.get("RANK") == "0" and rank != 0:
        time.sleep(0.5)
    report(self, rank, reason)

def run(self, feed, step, **more):
    if step == 2 and os.environ.get("RANK") == "1":
        raise ValueError("the disk is full")
    return whole(self, feed, step, **more)

def build(batch=8):
    Executor.run, FailureChannel.report = run, late
    failures.GRACE = 300.0  # seconds to wait for the reason: long, as the machine may be busy
    return zoo.load("mlp-tiny", batch=batch, device="cpu")
"""


def test_a_rank_that_fails_ends_all(launch: Any, plan: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    words = [plan("mlp-tiny", "data", 3), "--model", f"{tmp_path}/broken.py:build"]
    ended = launch(3, words)
    assert [e.code for e in ended] == [1, 1, 1]
    assert ended[1].error.endswith(
        "raddle: rank 1 failed: ValueError in step 2: the disk is full\n"
    )
    assert "raddle: rank 0 stops: rank 1 failed: ValueError in step 2" in ended[0].error
    assert ended[2].error == ""
    assert "Traceback" not in ended[0].error


def test_a_loss_that_is_no_number_is_one_sentence(launch: Any, plan: Any) -> None:
    words = [plan("mlp-tiny", "data", 2), "--lr", 1e38, "--check-finite"]
    ended = launch(2, words)
    assert [e.code for e in ended] == [1, 1]
    errors = ended[0].error + ended[1].error
    assert re.search(r"rank \d failed: FloatingPointError in step 1: the loss is (nan|inf)", errors)
    assert "Traceback" not in errors


# -- without ranks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        Options("p.json"),
        Options("p.json", steps=3, warmup=0, seed=5, lr=0.5, clip_norm=1.5, check_finite=True),
        Options("p.json", model="m.py:f", device="cpu", backend="gloo", dtype="float64", threads=2),
        Options("p.json", compile="max-autotune"),
        Options("p.json", timeout=7.5, trace="t.json", json=True, dropout="exact"),
    ],
)
def test_options_travel_as_words(options: Options) -> None:
    assert parse(options.command_line()) == options


@pytest.mark.parametrize(
    ("ranks", "given", "threads"),
    [(1, None, 8), (2, None, 4), (16, None, 1), (2, "1", 4), (1, "1", 1), (2, "3", 3), (2, "x", 4)],
)
def test_threads_of_a_rank(
    ranks: int, given: str | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setenv("OMP_NUM_THREADS", given or "")
    assert session.default_threads() == threads


def test_what_is_not_compiled_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    with session._short_warnings(3):
        for _ in range(2):
            warnings.warn("'fc' runs without torch.compile: no", NotCompiled, stacklevel=1)
    assert capfd.readouterr().err == "raddle: rank 3: 'fc' runs without torch.compile: no\n"


def test_clocks_of_other_machines_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nobody:
        def barrier(self) -> None:
            pass

    def exchange(mine: Any) -> list[Any]:
        return [("another machine", [t + 100 for t in mine[1]]), mine]

    assert clocks.clock_offset(Nobody(), exchange) == pytest.approx(100)  # type: ignore[arg-type]
    assert clocks.clock_offset(Nobody(), lambda mine: [mine]) == 0  # type: ignore[arg-type]


def test_messages_on_a_link_follow_each_other() -> None:
    """Two messages that overlap in time, and an arrow from run to run for each."""

    def run(name: str, start: float, end: float) -> RecordedInterval:
        return RecordedInterval("run", name, "forward", 0, 0, start, end)

    sends = [
        RecordedInterval("send", "x", "activation", 0, -1, 1.0 + t, 1.1, 8, (1,), t) for t in (0, 1)
    ]
    waits = [
        RecordedInterval("wait", "x", "activation", 0, 0, 1.0, 3.0 + t, 8, (0,), t) for t in (0, 1)
    ]
    source = [run("made", 0.0, 1.0), *sends]
    target = [*waits, run("used", 5.0, 6.0)]
    events = list(trace_events(["cpu", "cpu"], [source, target]))
    links = [(e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == 2]
    assert links == [(1e6, 2e6), (3e6, 1e6)]
    assert [(e["pid"], round(e["ts"])) for e in events if e["ph"] in "sf"] == [
        (0, 1_000_000), (1, 5_000_000), (0, 1_000_000), (1, 5_000_000),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("device", "gpus", "local", "alone", "expected"),
    [
        (None, 0, True, True, ("cpu", None)),
        (None, 0, False, False, ("cpu", None)),
        (None, 4, False, True, ("cuda", None)),
        (None, 2, True, True, ("cpu", None)),
        ("cuda", 2, True, True, ("cuda", "gloo")),
        ("cpu", 4, True, True, ("cpu", None)),
        (None, 0, False, True, "add --local"),
        (None, 2, False, True, "needs 4 GPUs of this machine, which has 2: add --local"),
        ("cpu", 4, False, True, "add --local"),
        ("cuda", 0, True, True, "there is no GPU"),
    ],
)
def test_what_a_run_needs_of_this_machine(
    device: str | None, gpus: int, local: bool, alone: bool, expected: Any
) -> None:
    options = Options("p.json", device=device)

    def place() -> Options:
        return choose_device(options, 4, local=local, single_node=alone, gpus=gpus)

    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            place()
    else:
        assert (place().device, place().backend) == expected


def test_a_plan_of_one_device_needs_nothing() -> None:
    assert (
        choose_device(Options("p.json"), 1, local=False, single_node=True, gpus=0).device == "cpu"
    )


def test_the_torchrun_line_of_several_machines() -> None:
    machines = Machines(2, 1, "10.0.0.1", 1234)
    assert machines.devices_per_node(6) == 3
    assert " ".join(torchrun_arguments(Options("p.json", steps=4), 3, machines)) == (
        "--nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 1234 --nproc-per-node 3 "
        "-m raddle.runtime p.json --steps 4"
    )
    with pytest.raises(InputError, match="2 machines cannot have equally many of the plan's 5"):
        machines.devices_per_node(5)
    with pytest.raises(InputError, match="--node-rank is for several machines"):
        Machines(node_rank=1)
    with pytest.raises(InputError, match="needs the address of machine 0"):
        Machines(2, 0)


# -- the command line --------------------------------------------------------------------------------


def test_raddle_run_becomes_torchrun(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # it would become --threads
    path = plan("lenet-tiny", "data", 2)
    words = ["run", path, "--local", "--steps", "3", "--json"]
    command = [sys.executable, "-m", "raddle", *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["devices"] == 2  # stdout has nothing but the JSON
    assert result.stderr.splitlines()[0] == (
        f"torchrun --standalone --nproc-per-node 2 -m raddle.runtime {path} --steps 3 --device cpu --json"
    )
    assert "OMP_NUM_THREADS" not in result.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere.json", "--local"], "there is no plan file 'nowhere.json'"),
        (
            ["PLAN", "--device", "cpu"],
            "the plan needs 2 ranks, which would share the CPU of this machine",
        ),
        (["PLAN", "--local", "--warmup", "20"], "--warmup 20 leaves none of 20 steps"),
        (["PLAN", "--local", "--backend", "mpi"], "argument --backend: invalid choice"),
        (["PLAN", "--local", "--trace", "no/such/t.gz"], "there is no folder for"),
        (["PLAN", "--local", "--model", "gpt-tiny"], "the plan was made for 'mlp-tiny'"),
        (["PLAN", "--nnodes", "2"], "needs the address of machine 0"),
    ],
)
def test_raddle_run_refuses_before_anything_starts(
    plan: Any, words: list[str], sentence: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object) -> None:
        raise AssertionError("torchrun was started")

    monkeypatch.setattr(os, "execve", never)
    path = plan("mlp-tiny", "data", 2)
    monkeypatch.setattr(
        sys, "argv", ["raddle", "run", *(path if w == "PLAN" else w for w in words)]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, error = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert error.startswith("raddle: ")
    assert error.count("\n") == 1
    assert sentence in error
