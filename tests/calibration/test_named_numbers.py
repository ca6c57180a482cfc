"""Named numbers: every one can be read and set, changes the simulation's cluster, and keeps ratios."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raddle.calibration.named_numbers import NUMBERS, value_of, with_values
from raddle.clusters import Cluster, cluster
from raddle.clusters.file import load_cluster, save_cluster
from raddle.clusters.topology import build_cluster


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_takes_the_value_that_it_is_given(name: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    before = cluster("p100:2x2")
    value = 1.5 * value_of(before, name) if name not in ("memory", "fused") else 0.9
    value = value or NUMBERS[name].start
    after = with_values(before, {name: value})
    assert value_of(after, name) == pytest.approx(value)
    others = [other for other in NUMBERS if other != name]
    assert [value_of(after, n) for n in others] == [value_of(before, n) for n in others]
    assert with_values(before, {}) == before
    save_cluster(after.to_dict(), tmp_path / "fitted.yaml")
    assert load_cluster(tmp_path / "fitted.yaml").fingerprint() == after.fingerprint()


def two_kinds() -> Cluster:
    plain = cluster("p100:1x2")
    slow = replace(plain.devices[0], kind="slow", efficiency={"conv": 0.1, "matmul": 0.3})
    return build_cluster("mixed", [([plain.devices[0], slow], plain.node_links[0], None)])


def test_different_devices_keep_their_ratio() -> None:
    after = with_values(two_kinds(), {"conv": 1.0})
    assert [d.efficiency["conv"] for d in after.devices] == pytest.approx([1.0, 0.2])
    assert [d.efficiency["matmul"] for d in after.devices] == [0.6, 0.3]
