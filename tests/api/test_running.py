"""The devices that a plan needs, schedules by name or file, and the data of the live page."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from raddle.api.clusters import cluster, presets
from raddle.api.defaults import COMPARE_SECONDS
from raddle.api.live_page import live_page_data
from raddle.api.loading import capture_model
from raddle.api.models import zoo_names
from raddle.api.planning import BASELINES, SEARCHES, plan_for
from raddle.api.plans import save_plan
from raddle.api.running import devices_needed
from raddle.api.schedules import make_schedule, read_schedule, schedule_to_text
from raddle.errors import InputError


def test_devices_of_a_plan(tmp_path: pathlib.Path) -> None:
    graph, path = capture_model("mlp-tiny", 6), tmp_path / "plan.json"
    plan = plan_for(graph, cluster("p100:1x3"), "data", model="mlp-tiny", sync="allreduce")
    save_plan(plan, graph, path)
    options: dict[str, Any] = {"model": None, "dtype": None, "seed": 0}
    assert devices_needed(str(path), **options) == 3
    with pytest.raises(InputError, match="the plan was made for 'mlp-tiny'"):
        devices_needed(str(path), **{**options, "model": "gpt-tiny"})


def test_a_schedule_by_name_or_file(tmp_path: pathlib.Path) -> None:
    made = make_schedule("1f1b", stages=2, microbatches=3, workers=None)
    path = tmp_path / "rows.txt"
    path.write_text(schedule_to_text(made))
    assert make_schedule(str(path), stages=9, microbatches=9, workers=9) == made
    assert [read_schedule(name) for name in (None, "1f1b", "threaded:4")] == [
        "",
        "1f1b",
        "threaded:4",
    ]


def test_the_live_page_offers_what_there_is() -> None:
    data = live_page_data()
    assert data["models"] == zoo_names()
    assert (data["methods"], data["searches"]) == ([*BASELINES], [*SEARCHES])
    assert data["budget"] == COMPARE_SECONDS
    assert len(data["clusters"]) == len(presets())
    assert all(cluster(spec).devices for spec in data["clusters"])
    assert "<html" in data["page"]
