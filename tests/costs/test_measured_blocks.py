"""Measured blocks: the simulation takes as long as was measured, and other sizes follow the line."""

from __future__ import annotations

import pathlib
from dataclasses import replace
from itertools import pairwise

import pytest
from drawn_blocks import drawn_blocks
from hypothesis import given
from hypothesis import strategies as st

from raddle import zoo
from raddle.api.planning import plan as make_plan
from raddle.clusters import Cluster, cluster, compiled
from raddle.clusters.topology import build_cluster
from raddle.costs.measured_blocks import fit_block
from raddle.costs.profile import Profile, load_profile
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.probe.blocks import single_device_plan
from raddle.program.lower import lower
from raddle.program.program import Update
from raddle.searches.predict import simulate_steps
from raddle.simulation.timeline import simulate

seconds = st.floats(1e-7, 10.0)


def tiny() -> Graph:
    work = zoo.load("lenet-tiny", batch=16)
    return capture(work.model, work.batch, work.loss, name="lenet-tiny")


GRAPH = tiny()


def one_device() -> Cluster:
    device = cluster("p100:1x2").devices[0]
    return build_cluster("one", [([device], None, None)])


@given(work=seconds, part=st.floats(0.01, 0.99), whole=seconds, small=seconds)
def test_the_line_goes_through_what_was_measured_and_never_falls(
    work: float, part: float, whole: float, small: float
) -> None:
    block = fit_block("F", [(work, whole), (part * work, small)], {"a": work}, 0.0)
    assert block.fixed + block.slope * work == pytest.approx(whole)
    assert block.slope >= 0 <= block.fixed
    if whole * part <= small <= whole:
        assert block.fixed + block.slope * part * work == pytest.approx(small, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("floor", [0.0, 1.0])
def test_the_simulation_takes_as_long_as_the_blocks_and_the_update(seed: int, floor: float) -> None:
    on = one_device()
    blocks = drawn_blocks(GRAPH, on.devices[0], seed, floor)
    program = lower(GRAPH, single_device_plan(GRAPH, "float32", "adamw"))
    timeline = simulate(program, on, Profile({}, blocks))
    measured = sum(max(block.seconds, block.floor) for block in blocks.blocks)
    weights = sum(
        program.updated_elements(region)
        for update in program.instructions if isinstance(update, Update)
        for region in update.regions
    )  # fmt: skip
    update = 7 * 4 * weights / blocks.update_bandwidth  # AdamW reads and writes seven float32
    assert timeline.step_seconds == pytest.approx(measured + update, rel=1e-3)


def test_another_batch_follows_the_work() -> None:
    on, steps = one_device(), []
    blocks = drawn_blocks(GRAPH, on.devices[0], floor=0.0)
    proportional = replace(
        blocks, blocks=tuple(replace(b, fixed=0.0) for b in blocks.blocks), update_bandwidth=1e15
    )
    for batch in (8, 16, 32, 64):
        graph = GRAPH.for_batch(batch)
        plan = single_device_plan(graph, "float32", "sgd")
        steps.append(simulate_steps(graph, plan, on, Profile({}, proportional)).step_seconds)
    assert steps == sorted(steps)
    differences = [b - a for a, b in pairwise(steps)]
    # Weights do not grow with the batch: each further sample takes as long as every other.
    assert differences[1:] == pytest.approx([2 * d for d in differences[:-1]], rel=0.05)


def test_a_profile_with_blocks_is_saved_and_read(tmp_path: pathlib.Path) -> None:
    blocks = drawn_blocks(GRAPH, one_device().devices[0])
    Profile({"key": 1.0}, blocks).save(tmp_path / "p.json")
    again = load_profile(tmp_path / "p.json")
    assert (again.seconds, again.blocks) == ({"key": 1.0}, blocks)


def test_blocks_count_for_their_device_and_precision_alone() -> None:
    on = one_device()
    device = on.devices[0]
    profile = Profile({}, drawn_blocks(GRAPH, device))
    plan = single_device_plan(GRAPH, "float32", "sgd")
    faster = replace(device, bandwidth=2 * device.bandwidth)
    with pytest.raises(InputError, match="another description of p100"):
        simulate_steps(GRAPH, plan, build_cluster("other", [([faster], None, None)]), profile)
    with pytest.raises(
        InputError, match=r"without torch.compile, and the plan is with it: .*--compile"
    ):
        simulate_steps(GRAPH, plan, compiled(on), profile)
    other = build_cluster("other", [([replace(device, kind="other")], None, None)])
    assert (
        simulate_steps(GRAPH, plan, other, profile).step_seconds
        == simulate_steps(GRAPH, plan, other).step_seconds
    )
    with pytest.raises(InputError, match="measured in float32, not in bf16"):
        make_plan(GRAPH, cluster=on, method="data", precision="bf16", profile=profile)


@pytest.mark.parametrize("method", ["data", "optcnn", "flexflow", "layerwise", "pipeline"])
def test_searches_use_measured_blocks(method: str) -> None:
    on = cluster("p100:1x2")
    profile = Profile({}, drawn_blocks(GRAPH, on.devices[0]))
    result = make_plan(GRAPH, cluster=on, method=method, profile=profile, budget=1.0)
    assert result.step_ms > 0
