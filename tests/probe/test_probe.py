"""The probe measures, caches its results, uses only the loopback interface, and all its processes end."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from processes import alive, children, listening, on_linux
from timeouts import HANG, wait_until

from raddle.clusters import Cluster, cluster
from raddle.clusters.devices import EFFICIENCY
from raddle.errors import InputError
from raddle.probe import cache, describe, machine, probe
from raddle.probe.cpu_load import busy_cores
from raddle.probe.launch import run
from raddle.probe.output import write

RANK = "raddle.probe.rank"


pytestmark = on_linux


@pytest.fixture(autouse=True)
def separate_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a killed process leaves its files there


@pytest.fixture(autouse=True)
def earlier() -> Iterator[set[int]]:
    """Return the child processes before the test; after it, no other child may exist."""
    before = children(os.getpid())
    yield before
    assert children(os.getpid()) <= before


def test_two_ranks_from_end_to_end(tmp_path: Path, earlier: set[int]) -> None:
    shares, addresses = [], set()

    def record(message: dict) -> None:
        shares.append(message["done"] / message["of"])
        for child in children(os.getpid()) - earlier:
            addresses.update(listening(child))

    measured = probe(2, quick=True, on_progress=record)
    assert not measured["cached"]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] < 1
    assert addresses == {"0100007F"}  # 127.0.0.1, as the kernel writes it

    for link in (measured["idle"], measured["loaded"]):
        assert 0 <= link["latency"] < math.inf
        assert 0 < link["bandwidth"] < math.inf
    assert 0 < measured["flops"]["matmul float32"] < math.inf
    assert 0 < measured["overhead"] < math.inf
    assert 0 <= measured["busy_cores"] <= os.cpu_count()
    # Any of them may be 0: on a busy machine such small times cannot be measured.
    assert {*measured["host_overhead"]} == {"message", "byte", "sum", "slice"}
    assert all(0 <= seconds < math.inf for seconds in measured["host_overhead"].values())

    file = tmp_path / "here.yaml"
    write(measured, str(file))
    c = cluster(file)
    assert c == Cluster.from_dict(describe(measured))
    assert (c.name, len(c.devices), c.nodes) == ("local:2", 2, 1)
    assert c.devices[0].kind == cluster("local:2").devices[0].kind
    for family in ("matmul", "conv", "attention"):
        rate = c.devices[0].peak("float32") * c.devices[0].efficiency[family]
        assert rate == pytest.approx(measured["flops"][f"{family} float32"], rel=1e-3)
    assert c.route(0, 1).bandwidth == measured["loaded"]["bandwidth"]
    # A probe does not measure by how much a running all-reduce slows computing.
    assert c.devices[0].host_overhead == {**measured["host_overhead"], "collective": 0.0}

    assert probe(2, quick=True) == {**measured, "cached": True}


def test_fresh_measures_again_and_a_damaged_cache_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counter = count()
    monkeypatch.setattr(machine, "_measure", lambda *_, **__: {"number": next(counter)})
    cache.path().parent.mkdir(parents=True)
    for damage in ("", "{", "[]", "\0", '{"a": 1}'):
        cache.path().write_text(damage)
        assert cache.recall("a") is None
    assert probe(1) == {"number": 0, "cached": False}
    assert probe(1) == {"number": 0, "cached": True}
    assert probe(2) == {"number": 1, "cached": False}
    assert probe(1, fresh=True) == {"number": 2, "cached": False}
    assert probe(1) == {"number": 2, "cached": True}
    assert "a" in json.loads(cache.path().read_text())  # entries of others stay


def test_a_cache_that_cannot_be_written_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cache.remember("a", {})
    assert cache.recall("a") is None


def test_a_busy_machine_is_noticed() -> None:
    busy = "print('busy', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            assert 0.5 < busy_cores() <= os.cpu_count()
        finally:
            process.kill()


def test_a_gpu_is_described_beside_the_ranks() -> None:
    rates = {"matmul float32": 5e13, "conv float32": 4e13, "attention float32": 3e13}
    rates_of_device = {
        "flops": {**rates, "matmul float16": 6e14},
        "memory_bandwidth": 4e12,
        "overhead": 1e-5,
    }
    measured = {
        **rates_of_device,
        "ranks": 1,
        "cores": 2,
        "memory": 2**30,
        "gpu": {"name": "NVIDIA H200", "count": 8, "memory": 2**37, **rates_of_device},
    }
    description = describe(measured)
    description["nodes"][0]["devices"] = ["nvidia-h200"]
    gpu = Cluster.from_dict(description).devices[0]
    assert (gpu.peak("float32"), gpu.peak("float16"), gpu.memory) == (5e13, 6e14, 2**37)
    assumed = {"fused": EFFICIENCY["fused"]}  # it is not measured
    measured = {"matmul": 1.0, "conv": 0.8, "attention": 0.6, "memory": 1.0}
    assert gpu.efficiency == {**measured, **assumed}


@pytest.mark.parametrize("ranks", [0, -1, 65])
def test_ranks_that_cannot_be_probed(ranks: int) -> None:
    with pytest.raises(InputError, match="ask for 1 to 64"):
        probe(ranks)


def test_a_rank_that_waits_for_ever_is_ended() -> None:
    settings = {"rank": 0, "ranks": 2, "threads": 1, "quick": True, "window": 0.1}
    with pytest.raises(InputError, match="did not end within 4 s"):
        run(RANK, [settings], threads=1, seconds=4)  # rank 1 never comes


def test_a_rank_that_fails_is_named() -> None:
    good = {"rank": 0, "ranks": 2, "threads": 1, "quick": True, "window": 0.1}
    with pytest.raises(InputError, match=r"process 1 of the probe failed \(KeyError: 'rank'\)"):
        run(RANK, [good, {"threads": 1}], threads=1, seconds=HANG)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_probe(how: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "raddle", "probe", "--fresh"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        wait_until(lambda: len(children(parent.pid)) == 2)
        ranks = children(parent.pid)
        time.sleep(1)  # they are importing torch, or measuring already
        parent.send_signal(how)
        output, _ = parent.communicate(timeout=HANG)
    assert parent.returncode != 0
    assert output == b""
    wait_until(lambda: not any(alive(rank) for rank in ranks))


def test_one_rank_has_nobody_to_talk_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a module of the user came in')\n")
    monkeypatch.chdir(tmp_path)
    measured = probe(1, quick=True)
    assert measured["idle"] is None
    write(measured, "one.yaml")
    assert cluster("one.yaml").links == ()
