"""`raddle calibrate`: the example of the docs, JSON, the fitted file, and mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import raddle, refused

from raddle.clusters import cluster

DOCS = Path(__file__).parents[2] / "docs" / "calibrating.md"


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """The example of docs/calibrating.md."""
    (text,) = re.findall(r"```csv\n(.*?)```", DOCS.read_text(), re.S)
    file = tmp_path / "measured.csv"
    file.write_text(text)
    return file


def test_the_example_of_the_docs(measured: Path, tmp_path: Path) -> None:
    fitted = tmp_path / "fitted.yaml"
    done = raddle("calibrate", "p100:1x2", measured, "-o", fitted, "--fit", "overhead,link")
    assert done.returncode == 0, done.stderr
    uses = re.findall(r"% +(fitted|held out)", done.stdout)
    assert uses == ["fitted"] * 3 + ["held out"]
    text = fitted.read_text()
    assert "# Fitted by raddle calibrate to 3 measurements" in text
    assert "# overhead, seconds per operator: 5e-06 -> " in text
    assert cluster(fitted).devices[0].overhead != cluster("p100").devices[0].overhead


def test_json(measured: Path) -> None:
    done = raddle("calibrate", "p100:1x2", measured, "--fit", "overhead", "--json")
    result = json.loads(done.stdout)
    assert [row["held_out"] for row in result["rows"]] == [False, False, False, True]
    assert result["fitted"][0]["name"] == "overhead"
    for row in result["rows"]:
        ratio = row["predicted_samples_per_s"] / row["measured_samples_per_s"]
        assert row["residual"] == pytest.approx(ratio - 1)


def test_mistakes(measured: Path, tmp_path: Path) -> None:
    refused(raddle("calibrate", "p100:1x2", tmp_path / "no.csv"), "no table of measurements")
    refused(raddle("calibrate", "p200", measured), "no cluster 'p200'")
    refused(raddle("calibrate", "p100:1x2", measured, "--fit", "luck"), "'luck' cannot be fitted")
    refused(raddle("calibrate", "p100:1x1", measured), "p100:1x1 has 1 devices")
    nowhere = tmp_path / "no" / "fitted.yaml"
    refused(raddle("calibrate", "p100:1x2", measured, "-o", nowhere), "there is no folder")
