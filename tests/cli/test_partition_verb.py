"""`raddle partition`, `export` and `plan --from-partition`: tables, files, and plans that hold."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import command_line
import numpy as np
import pytest

from raddle.searches.hypergraph import formats


def raddle(*words: object) -> Any:
    """Return the output of a verb with --json, or its exit code and stderr if it failed."""
    done = command_line.raddle(*words, "--json")
    return (done.returncode, done.stderr) if done.returncode else json.loads(done.stdout)


def test_the_thesis_s_layer_wise_table() -> None:
    """Table 5.2 of the thesis, in Mi elements: volume, heaviest layer, average."""
    rows = raddle("partition", "vgg16", "-k", "2,4,8,16", "--method", "layerwise", "--batch", 32)
    expected = [(24.5, 24.5, 12.2), (85.7, 49.0, 21.4), (131.6, 49.0, 16.4), (273.5, 98.0, 17.0)]
    for row, figures in zip(rows, expected, strict=True):
        keys = ("volume_elements", "heaviest_elements", "average_elements")
        assert [row[key] / 2**20 for key in keys] == pytest.approx(figures, abs=0.1)
        assert row["volume_bytes"] == 8 * row["volume_elements"]
        assert sum(row["received_elements"]) == row["volume_elements"]


def test_given_weights_are_balanced(tmp_path: pathlib.Path) -> None:
    """With the reconstructed weights of Table 5.1, the largest parts have this work."""
    weights = [
        629, 6624, 2677, 6371, 2359, 4097, 4353, 2165, 5229, 4478, 1246, 1095, 988, 546, 84, 60,
    ]  # fmt: skip
    (tmp_path / "w.json").write_text(json.dumps(weights))
    rows = raddle(
        "partition", "vgg16", "-k", "2,4,8,16", "--method", "layerwise", "--batch", 32,
        "--weights", tmp_path / "w.json",
    )  # fmt: skip
    assert [row["work_max"] for row in rows] == pytest.approx([22757, 12827, 7253, 6624], rel=0.01)


@pytest.mark.parametrize("weights", ["time", "both"])
def test_time_can_be_balanced(weights: str) -> None:
    line = ("partition", "lenet", "-k", 2, "--method", "filter-incremental", "--weights", weights)
    (row,) = raddle(*line)
    assert row["imbalance"] < 1.3
    assert row["work_max"] != raddle(*line[:-1], "flops")[0]["work_max"]


def test_connected_layers_can_be_one_vertex(tmp_path: pathlib.Path) -> None:
    line = ("export", "lenet", "--to", "patoh", "-o", tmp_path / "h")
    assert raddle(*line)["vertices"] == 6 + 16 + 120 + 84 + 10
    assert raddle(*line, "--connected-as-one")["vertices"] == 6 + 16 + 3


@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_another_partitioner_s_answer_is_a_plan_that_holds(
    tmp_path: pathlib.Path, grain: str
) -> None:
    exported = raddle(
        "export", "lenet-tiny", "--to", "hmetis", "--grain", grain, "-o", tmp_path / "h"
    )  # fmt: skip
    hypergraph = formats.read_hypergraph(tmp_path / "h")
    assert len(hypergraph.weight) == exported["vertices"]
    parts = np.arange(exported["vertices"]) * 3 // exported["vertices"]
    formats.write_partition(parts, tmp_path / "h.part.3")
    plan = tmp_path / "plan.json"
    plan_row = raddle(
        "plan", "lenet-tiny", "--cluster", "local:3", "--from-partition", tmp_path / "h.part.3",
        "-o", plan,
    )  # fmt: skip
    assert plan_row["method"] == "partition"
    assert raddle("verify", plan, "--threads")["holds"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("partition", "lenet", "-k", "0"), "from 1 to 4096"),
        (("partition", "lenet", "-k", "two"), "from 1 to 4096"),
        (("partition", "lenet", "-k", "2", "--method", "best"), "no method 'best'"),
        (
            ("partition", "lenet", "-k", "9", "--method", "layerwise"),
            "5 layers cannot be put into 9",
        ),
        (
            ("partition", "lenet", "-k", "2", "--weights", "gone.json"),
            "there is no file of weights 'gone.json'",
        ),
        (("export", "lenet", "--to", "metis", "-o", "x"), "no format 'metis'"),
        (
            ("export", "lenet", "--to", "patoh", "--grain", "sand", "-o", "x"),
            "choose coarse or fine",
        ),
        (("export", "lenet", "--to", "patoh", "-o", "no/such/x"), "there is no folder"),
        (("plan", "lenet", "--cluster", "local:2", "--from-partition", "gone"), "there is no file"),
    ],
)
def test_bad_input_gets_one_sentence(words: tuple[str, ...], reason: str) -> None:
    code, said = raddle(*words)
    assert code == 2
    assert reason in said
    assert said.count("\n") == 1


def test_an_answer_must_fit(tmp_path: pathlib.Path) -> None:
    line = ("plan", "lenet-tiny", "--cluster", "local:2", "--from-partition", tmp_path / "p")
    (tmp_path / "p").write_text("0 1 2\n")
    assert "has 3 parts, 'local:2' 2 devices" in raddle(*line)[1]
    (tmp_path / "p").write_text("0 1\n")
    assert "the parts of 2 vertices" in raddle(*line)[1]
