"""`raddle compare`: a row a method."""

from __future__ import annotations

import json

import pytest
from command_line import raddle

ROW = {
    "method", "step_ms", "samples_per_s", "speedup", "comm_bytes", "peak_bytes", "imbalance", "search_s",
    "fits", "bn", "sync", "precision", "optimizer", "schedule", "stages", "microbatches", "lower_bound_ms",
}  # fmt: skip

SEARCHED = {"start", "proposals", "accepted", "stopped"}
REFUSED = {"hsdp", "megatron", "context", "3d"}  # for several nodes, or for transformers


@pytest.mark.usefixtures("thread_clock")
def test_compare_as_json_and_as_a_table() -> None:
    args = ("compare", "lenet-tiny", "--cluster", "p100:1x2", "--batch", "6", "--budget", "1")
    rows = json.loads(raddle(*args, "--json").stdout)
    methods = {row["method"]: row for row in rows}
    assert {"data", "model", "owt", "layerwise", "optcnn", "flexflow", "auto"} <= set(methods)
    planned = [row for row in rows if row["step_ms"] is not None]
    refused = [row for row in rows if row["step_ms"] is None]
    assert {row["method"] for row in refused} == REFUSED
    assert all(set(row) - SEARCHED == ROW for row in planned)
    assert all(set(row) == ROW - {"lower_bound_ms"} | {"error"} for row in refused)
    assert set(methods["auto"]) - ROW == SEARCHED
    assert methods["auto"]["step_ms"] == min(row["step_ms"] for row in planned)
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
