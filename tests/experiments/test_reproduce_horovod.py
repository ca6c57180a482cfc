"""Horovod's experiment: what is computed from runs, and scaling against a recount by hand."""

from __future__ import annotations

import pytest

from experiments import links
from experiments.experiment import RunOptions, load
from experiments.horovod import fusion, scaling, servers
from experiments.horovod.fusion import FusionTimes
from experiments.horovod.scaling import ThroughputCurve
from experiments.horovod.servers import (
    COMPUTE_ONLY,
    DDP_LABEL,
    ONE,
    RING,
    SLICED,
    StepMilliseconds,
)
from raddle.errors import InputError

# -- fusion ------------------------------------------------------------------------------------------


def pair(by: str, fused: float, apart: float) -> FusionTimes:
    return FusionTimes("resnet50", 2, "1gbit", by, fused, apart, fused, 2 * apart)


def test_a_gain_is_time_without_over_time_with() -> None:
    assert pair("DDP", 0.2, 0.3).gain == pytest.approx(1.5)


def test_the_summary_counts_where_fusion_is_slower() -> None:
    text = fusion.summary([pair("DDP", 0.2, 0.3), pair("plan", 0.25, 0.2), pair("plan", 0.2, 0.2)])
    assert "at most 1.50 x as fast (DDP" in text
    assert "at least 0.80 x (plan" in text
    assert "slower in 1 of 3 cases" in text


def test_the_row_of_a_pair() -> None:
    (row,) = fusion.table([pair("plan", 0.25, 0.2)]).rows
    assert row[1] == 161  # tensors
    assert row[5:] == pytest.approx([250, 250, 200, 400, 0.8, 1.6, 1.65])


# -- servers -----------------------------------------------------------------------------------------


def row(ranks: int, **times: float) -> StepMilliseconds:
    milliseconds = dict.fromkeys((COMPUTE_ONLY, *servers.VARIANTS), 100.0) | times
    return StepMilliseconds(ranks, milliseconds, dict.fromkeys(servers.VARIANTS, 80.0))


def test_the_summary_is_of_the_most_ranks() -> None:
    text = servers.summary([row(2), row(4, **{ONE: 310.0, SLICED: 90.0, "raddle.sync": 105.0})])
    assert "On 4 ranks one server takes 3.10 x" in text
    assert "of slices 0.90 x" in text
    assert "takes 1.05 x DDP's" in text


def test_the_summary_names_wrong_predictions() -> None:
    rows = [row(2, **{RING: 80.0, DDP_LABEL: 160.0})]
    text = servers.summary(rows)
    assert f"Of {len(servers.VARIANTS)} predictions 1 are within 15 %" in text
    assert "off by 50%" in text


def test_samples_of_all_ranks_count() -> None:
    one = StepMilliseconds(1, {COMPUTE_ONLY: 50.0, DDP_LABEL: 100.0}, {})
    rows = {line[0]: line[1:] for line in servers.throughput_table([one, row(4)]).rows}
    assert rows[DDP_LABEL] == [40.0, 160.0]  # 4 in 100 ms; 16 in 100 ms
    assert rows[ONE] == [None, 160.0]  # one rank has no server


def test_every_row_of_the_table_has_all_ranks() -> None:
    table = servers.table([row(2), row(4)])
    assert len(table.rows) == 1 + len(servers.VARIANTS)
    assert len(table.columns) == 5


# -- scaling -----------------------------------------------------------------------------------------


def test_the_cluster_is_the_papers() -> None:
    cluster = scaling.pascal(16)
    assert (cluster.nodes, len(cluster.devices)) == (4, 16)
    assert all(net is not None and net.bandwidth == 25e9 / 8 for net in cluster.node_networks)
    assert len(scaling.pascal(1).devices) == 1
    fast = scaling.pascal(16, 2.0).devices[0]
    assert fast.flops["float32"] == 2 * cluster.devices[0].flops["float32"]


def test_efficiency_is_of_one_device() -> None:
    curve = ThroughputCurve("vgg16", {1: 50.0, 4: 190.0})
    assert curve.efficiency(4) == pytest.approx(0.95)
    assert curve.efficiency(1) == 1.0


@pytest.fixture(scope="module")
def small() -> dict[int, float]:
    """Images a second of AlexNet: large tensors, little compute."""
    return {n: scaling.images_per_s(scaling.program_of("alexnet", n), n, 1.0) for n in (1, 4, 16)}


def test_efficiency_falls_as_devices_are_added(small: dict[int, float]) -> None:
    curve = ThroughputCurve("alexnet", small)
    assert 1.0 >= curve.efficiency(4) > curve.efficiency(16) > 0


def test_a_step_between_nodes_takes_as_long_as_its_ring(small: dict[int, float]) -> None:
    # 61.1 M parameters; rings inside of 4 nodes and between them, or one over all: at least what a node's
    # adapter has to send, 2 (4 - 1)/4 of all bytes at 25 Gbit/s, is not hidden by so little compute.
    network = 2 * 3 / 4 * 4 * 61.1e6 / (25e9 / 8)
    step = scaling.PER_DEVICE * 16 / small[16]
    alone = scaling.PER_DEVICE / small[1]
    assert max(network, alone) <= step <= network + alone + 0.2 * network


def test_faster_devices_scale_worse(small: dict[int, float]) -> None:
    program = scaling.program_of("alexnet", 16)
    slow, fast = (scaling.images_per_s(program, 16, f) / f for f in (1.0, 4.0))
    assert fast < slow


def test_printed_figures_stand_at_their_devices() -> None:
    curves = [ThroughputCurve(model, {1: 1.0, 128: 100.0, 512: 300.0}) for model in scaling.MODELS]
    rows = {(line[0], line[1]): line[2:] for line in scaling.efficiencies(curves, curves).rows}
    assert rows["VGG-16", 512][2:] == [None, 68.0]
    assert rows["ResNet-101", 128][2:] == [88.0, 90.0]
    assert rows["Inception V3", 1][2:] == [None, None]
    assert rows["Inception V3", 128][0] == pytest.approx(100 * 100 / 128)


def test_the_summary_follows_the_figures() -> None:
    curves = [ThroughputCurve(model, {1: 1.0, 512: 256.0}) for model in scaling.MODELS]
    beside = {sync: {4: 100.0} for sync in scaling.SYNCS} | {"ps:one": {4: 25.0}}
    text = scaling.summary(curves, beside, 1.25)
    assert "keep 50% on 512 devices (printed: 68%)" in text
    assert "ps:one 0.25 x" in text
    assert "1.25 x" in text


def test_without_a_lab_only_scaling_is_left(monkeypatch) -> None:
    def none(**options):
        raise InputError("a lab needs root.")

    monkeypatch.setattr(links.Lab, "up", none)
    for part in load("horovod").parts[:2]:
        assert part.make(RunOptions(quick=True)).skipped == "a lab needs root."
