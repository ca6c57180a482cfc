"""Numbers are written with three digits and a unit."""

from __future__ import annotations

import pytest

from raddle.reports import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.count_text(138_357_544), "138 M"),
        (units.count_text(0), "0"),
        (units.count_text(999), "999"),
        (units.count_text(999.6), "1.00 k"),
        (units.flops_text(30_960_000_000), "31.0 GFLOP"),
        (units.bytes_text(1_572_864), "1.50 MiB"),
        (units.bytes_text(1023), "1023 B"),
        (units.bytes_text(1024), "1.00 KiB"),
        (units.bytes_text(2**60), "1024 PiB"),
        (units.rate_text(12.5e9), "12.5 GB/s"),
        (units.speed_text(10.6e12), "10.6 TFLOP/s"),
        (units.seconds_text(5e-6), "5.00 us"),
        (units.seconds_text(0.0), "0 ns"),
        (units.seconds_text(3600), "3600 s"),
        (units.plural(1, "device"), "1 device"),
        (units.plural(2, "device"), "2 devices"),
    ],
)
def test_three_digits_and_a_unit(text: str, expected: str) -> None:
    assert text == expected
