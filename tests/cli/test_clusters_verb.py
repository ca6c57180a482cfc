"""`raddle clusters` and `raddle probe`: a table, `--json` alone on stdout, a sentence and code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from timeouts import HANG

from raddle.clusters import Cluster, cluster


def raddle(*args: str, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)} if cache else None
    return subprocess.run(
        [sys.executable, "-m", "raddle", *args],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
        env=environment,
    )


def test_the_list() -> None:
    rows = json.loads(raddle("clusters", "--json").stdout)
    assert {"p100", "k80", "skylake-10gbe", "h200", "local"} <= {row["name"] for row in rows}
    table = raddle("clusters").stdout
    assert all(row["name"] in table and row["source"] in table for row in rows)


def test_one_of_them() -> None:
    shown = json.loads(raddle("clusters", "p100:4x4", "--json").stdout)
    assert (shown["devices"], shown["nodes"]) == (16, 4)
    assert Cluster.from_dict(shown["description"]) == cluster("p100:4x4")
    assert [(route["where"], route["bandwidth"]) for route in shown["routes"]] == [
        ("inside", 40e9),
        ("between", 12.5e9),
    ]
    table = raddle("clusters", "p100:4x4").stdout
    assert "16 devices in 4 nodes" in table
    assert "node0 nic out, node1 nic in" in table
    assert all(text in table for text in ("10.6 TFLOP/s", "732 GB/s", "12.5 GB/s", "5.00 us"))


def test_nodes_that_differ(tmp_path: Path) -> None:
    file = tmp_path / "mixed.yaml"
    file.write_text(
        "devices:\n"
        "  a: {flops: {float32: 1e12}, memory: 1 GiB, bandwidth: 1e11}\n"
        "  b: {flops: {float32: 2e12, float16: 8e12}, memory: 2 GiB, bandwidth: 2e11}\n"
        "nodes:\n"
        "  - {devices: [a, a], link: {bandwidth: 1e10, latency: 1 us, shared: true}}\n"
        "  - {count: 2, devices: [b], network: {bandwidth: 1e8, latency: 1 ms}}\n"
        "network: {bandwidth: 1e9, latency: 10 us}\n"
    )
    shown = json.loads(raddle("clusters", str(file), "--json").stdout)
    assert shown["name"] == "mixed"
    assert [(row["kind"], row["count"]) for row in shown["kinds"]] == [("a", 2), ("b", 2)]
    assert [(row["source"], row["target"], row["bandwidth"]) for row in shown["routes"]] == [
        (0, 1, 1e10),
        (2, 3, 1e8),
        (0, 2, 1e8),
    ]
    assert "8.00 TFLOP/s" in raddle("clusters", str(file)).stdout


def test_probe_and_use_it(tmp_path: Path) -> None:
    file = tmp_path / "here.yaml"
    result = raddle("probe", "--quick", "--json", "-o", str(file), cache=tmp_path)
    measured = json.loads(result.stdout)
    assert result.stderr == ""  # a bar is for terminals
    assert measured["file"] == str(file)
    assert Cluster.from_dict(measured["cluster"]) == cluster(file)
    table = raddle("probe", "--quick", cache=tmp_path).stdout
    assert "--fresh measures again" in table
    assert "message, under load" in table
    assert "2 devices in 1 node" in raddle("clusters", str(file)).stdout


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["clusters", "p10"], "did you mean p100"),
        (["clusters", "gone.yaml"], "there is no cluster in YAML 'gone.yaml'"),
        (["clusters", "p100:4y4"], "write p100:16 for 16 devices"),
        (["probe", "--ranks", "0"], "0 ranks cannot be probed"),
        (["probe", "-o", "here"], "name it here.yaml"),
        (["probe", "-o", "gone/here.yaml"], "no folder gone"),
    ],
)
def test_bad_input(args: list[str], sentence: str) -> None:
    result = raddle(*args)
    assert (result.returncode, result.stdout) == (2, "")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
