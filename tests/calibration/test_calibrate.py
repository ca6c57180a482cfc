"""Calibration recovers the numbers with which steps were simulated, and says what it cannot."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from raddle.api.calibrating import calibrate, describe
from raddle.api.loading import capture_model
from raddle.calibration.measurements import Measurement
from raddle.calibration.named_numbers import value_of, with_values
from raddle.calibration.prediction import Prediction, with_after
from raddle.clusters import Cluster, cluster
from raddle.clusters.topology import build_cluster
from raddle.errors import InputError
from raddle.plans.sync import read_sync

# A slow network and device, so that the steps of small models depend on them.
GIVEN = with_values(
    cluster("p100:2x2"), {"link": 1e9, "network": 1e8, "overhead": 1e-8, "peak": 1e11}
)
ROWS = (("1", "data", "allreduce"), ("2", "data", "allreduce"), ("2x2", "data", "ps"),
        ("2x2", "model", "allreduce"))  # fmt: skip


@cache
def capture(model: str, batch: int) -> Any:
    return capture_model(model, batch)


def simulated(on: Cluster, *, held_out: int = 1, after: bool = False) -> list[Measurement]:
    """Measurements that are predictions of another cluster; the last ones are held out."""
    measurements = []
    for number, (devices, method, sync) in enumerate(ROWS):
        row = Measurement("alexnet-tiny", 16, devices, method, "", sync, 0.0, 1.0, False)
        prediction = Prediction(row, on, capture, lambda path: pytest.fail(path), after=after)
        ms, out = 1e3 * prediction.seconds({}), number >= len(ROWS) - held_out
        measurements.append(row._replace(step_ms=ms, held_out=out))
    return measurements


def test_recovers_the_numbers_of_another_cluster() -> None:
    true = {"conv": 1.7, "link": 2.1e8, "network": 4e7}
    result = calibrate(GIVEN, simulated(with_values(GIVEN, true)), [*true])
    for name, value in true.items():
        assert value_of(result.cluster, name) == pytest.approx(value, rel=0.02), name
    assert max(abs(row.residual) for row in result.rows) < 0.01
    assert result.rows[-1].measurement.held_out
    notes = {number["name"]: number["note"] for number in describe(result)["fitted"]}
    assert "Winograd" in notes["conv"]
    assert not notes["link"]
    assert calibrate(GIVEN, simulated(with_values(GIVEN, true)), [*true]) == result


def test_after_the_backward_is_kept_where_it_is_nearer() -> None:
    for after in (False, True):
        measured = simulated(with_values(GIVEN, {"link": 3e8}), after=after)
        result = calibrate(GIVEN, measured, ["link", "after"])
        assert result.sync_after_backward == after
        assert value_of(result.cluster, "link") == pytest.approx(3e8, rel=0.02)
        assert all(read_sync(row.sync).after_backward == after for row in result.rows)


def test_says_what_is_not_determined() -> None:
    one_device = simulated(GIVEN)[:1]
    result = calibrate(GIVEN, one_device, ["network", "attention"])
    assert [number.undetermined_with for number in result.numbers] == [("network",), ("attention",)]
    assert all("do not depend on it" in row["note"] for row in describe(result)["fitted"])
    traded = calibrate(GIVEN, one_device, ["conv", "peak"])
    assert set(traded.numbers[0].undetermined_with) == {"conv", "peak"}


def test_by_default_fits_fewer_numbers_than_there_are_measurements() -> None:
    result = calibrate(GIVEN, simulated(with_values(GIVEN, {"conv": 0.2, "network": 3e7})))
    assert 1 <= len(result.numbers) <= 2
    assert max(abs(row.residual) for row in result.rows[:3]) < 0.2


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["speed"], "'speed' cannot be fitted: choose from"),
        (["conv", "conv"], "names a number twice"),
        (["after"], "name at least one of"),
        ([], "name at least one of"),
    ],
)
def test_refuses_names(names: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        calibrate(GIVEN, simulated(GIVEN)[:1], names)


def test_a_cluster_without_a_network_has_no_bandwidth_of_it() -> None:
    one_node = build_cluster("one", [(list(GIVEN.devices[:2]), GIVEN.node_links[0], None)])
    with pytest.raises(InputError, match="one has no network whose bandwidth"):
        calibrate(one_node, simulated(GIVEN)[:1], ["network"])


def test_after_is_added_where_a_kind_has_it() -> None:
    assert [with_after(sync) for sync in (
        "allreduce", "ps:sliced", "server:after", "p3", "sharded", "sharded:parameters",
        "sharded,group=2", "sharded:parameters,group=2",
    )] == ["allreduce:after", "ps:sliced,after", "server:after", "p3", "sharded:after",
           "sharded:parameters", "sharded:group=2,after", "sharded:parameters,group=2"]  # fmt: skip
