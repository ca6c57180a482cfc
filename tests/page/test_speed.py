"""A page of inception_v3 on 16 devices is small, opens quickly, and more than 50,000 slices move smoothly.

Other tests compute meanwhile, so single frames may be late; bench/page measures on a quiet machine.
"""

from __future__ import annotations

import pathlib
from statistics import median
from time import perf_counter

import pytest
from looking import browser, opened, raddle
from moving import frames

pytestmark = pytest.mark.xdist_group("browser")


def test_fifty_thousand_slices(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "inception.html"
    said = raddle(
        "report", "inception_v3", "--cluster", "p100:4x4", "--batch", "512",
        "--methods", "data,model", "--alternatives", "0", "-o", str(path),
    )  # fmt: skip
    assert said["bytes"] < 2_000_000
    with browser() as started:
        begun = perf_counter()
        with opened(started, path) as page:
            assert perf_counter() - begun < 3
            page.locator(".bar", has_text="model").click()
            assert page.evaluate("raddle.method.timeline.count") > 50_000
            taken = frames(page)
    assert len(taken["draw"]) > 20
    assert median(taken["draw"]) < 16
    assert median(taken["pan"]) < 32
    assert median(taken["zoom"]) < 32
