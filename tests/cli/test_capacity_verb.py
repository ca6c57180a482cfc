"""`raddle capacity`: a table, and the same as JSON."""

from __future__ import annotations

import json

import pytest

from raddle.cli.main import app


def test_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["capacity", "mlp-tiny", "--cluster", "p100:1x2", "--methods", "data,fsdp"]
    app([*words, "--batch", "8"], standalone_mode=False)
    table = capsys.readouterr().out
    assert "the wanted batch needs" in table
    assert "nothing" in table
    app([*words, "--json"], standalone_mode=False)
    rows = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in rows] == ["data", "fsdp"]
    assert all(row["batch"] > 0 and row["peak_bytes"] <= row["memory"] for row in rows)
