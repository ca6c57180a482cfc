"""Profiles: measured times are used in place of the roofline, and saved in a file with a version."""

from __future__ import annotations

import pathlib

import pytest

from raddle import zoo
from raddle.clusters import cluster
from raddle.costs.profile import Profile, load_profile, profile_key
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.searches.planning import plan_for
from raddle.searches.predict import simulate_steps
from raddle.searches.profile_methods import profile_methods


def tiny() -> Graph:
    work = zoo.load("lenet-tiny")
    return capture(work.model, work.batch, work.loss)


def test_measured_and_saved(tmp_path: pathlib.Path) -> None:
    graph, pair = tiny(), cluster("local:2")
    profile = profile_methods(graph, pair, methods=["data", "model"])
    assert profile.seconds
    assert all(seconds > 0 for seconds in profile.seconds.values())
    profile.save(tmp_path / "p.json")
    again = load_profile(tmp_path / "p.json")
    assert again.seconds == profile.seconds
    same = profile_methods(graph, pair, methods=["data", "model"], profile=again)
    assert same.seconds == profile.seconds  # nothing is measured twice


def test_what_was_measured_comes_before_the_roofline() -> None:
    graph, pair = tiny(), cluster("local:2")
    plan = plan_for(graph, pair, "data")
    op = next(op for op in graph.ops if op.kind == "conv2d")
    box, kind = plan.tiles[op.name].boxes[0], pair.devices[0].kind
    slow = Profile({profile_key(op, box, "F", None, kind): 10.0})
    assert (
        simulate_steps(graph, plan, pair, slow).step_seconds
        > 10
        > simulate_steps(graph, plan, pair).step_seconds
    )


@pytest.mark.parametrize("content", [None, "no json", '{"raddle-profile": 99}', "[1]"])
def test_what_is_no_profile_is_refused(tmp_path: pathlib.Path, content: str | None) -> None:
    path = tmp_path / "p.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match="profile"):
        load_profile(path)


def test_dropouts_of_one_size_are_measured_once() -> None:
    work = zoo.load("gpt-tiny")
    graph = capture(work.model, work.batch, work.loss)
    ops = [op for op in graph.ops if op.kind == "attention"]
    assert len({op.attrs["stream"] for op in ops}) == len(ops) == 2
    assert len({profile_key(op, op.space.full, "F", None, "cpu") for op in ops}) == 1
