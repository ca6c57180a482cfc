"""`raddle explain`: where a plan's time goes, and what another split would cost."""

from __future__ import annotations

import json
import pathlib

import pytest
from command_line import raddle, refused


def test_explain_a_plan(plan_file: pathlib.Path) -> None:
    explained = json.loads(raddle("explain", plan_file, "--json")[1])
    simulated = json.loads(raddle("simulate", plan_file, "--json")[1])
    for key in ("step_ms", "comm_bytes", "peak_bytes", "imbalance"):
        assert explained["plan"][key] == simulated[key]
    assert sum(explained["plan"]["bytes"].values()) == explained["plan"]["comm_bytes"]
    code, text, _ = raddle("explain", plan_file, "--cluster", "local:2")
    assert code == 0
    assert f"lenet-tiny, batch {explained['batch']}, channel-incremental on local:2\n" in text
    assert "data parallel" in text
    assert "\x1b" not in text


def test_explain_an_operator(plan_file: pathlib.Path) -> None:
    explained = json.loads(raddle("explain", plan_file, "features.3", "--json")[1])
    assert explained["op"] == explained["group"]["anchor"] == "features.3"
    code, text, _ = raddle("explain", plan_file, "features.3")
    assert code == 0
    assert all(row["tiles"] in text for row in explained["alternatives"])
    assert "one step on its own" in text
    code, text, _ = raddle("explain", plan_file, "features")
    assert code == 0
    assert "The name fits" in text


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
def test_bad_explanations(plan_file: pathlib.Path, args: list[str], sentence: str) -> None:
    refused(raddle("explain", plan_file, *args), sentence)


def test_explain_what_is_no_plan(plan_file: pathlib.Path) -> None:
    refused(raddle("explain", "nowhere.json"), "there is no plan file 'nowhere.json'")
    refused(raddle("explain", ".", "features.0"), "'.' cannot be read")
    data = json.loads(plan_file.read_text())
    plan_file.write_text(json.dumps(data | {"cluster": None}))
    refused(raddle("explain", plan_file), "names no cluster: add --cluster")
    plan_file.write_text("{}")
    refused(raddle("explain", plan_file), "it has no key 'raddle'")
