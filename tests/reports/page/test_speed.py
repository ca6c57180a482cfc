"""A page of inception_v3 on 16 devices is small, and drawing its timeline takes fewer calls than slices.

`bench/page` measures how long it takes to open and to draw.
"""

from __future__ import annotations

import pathlib

import pytest
from chromium import browser, open_page, raddle_json
from timeline_frames import frames

pytestmark = pytest.mark.xdist_group("browser")

# Counts every call of a canvas method from now on.
COUNT = """() => {
    window.calls = 0;
    const all = CanvasRenderingContext2D.prototype;
    for (const [name, { value }] of Object.entries(Object.getOwnPropertyDescriptors(all))) {
        if (typeof value !== "function") continue;
        all[name] = function (...words) {
            window.calls += 1;
            return value.apply(this, words);
        };
    }
}"""


def test_a_frame_of_fifty_thousand_slices_is_a_few_strokes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "inception.html"
    said = raddle_json(
        "report", "inception_v3", "--cluster", "p100:4x4", "--batch", "512",
        "--methods", "data,model", "--alternatives", "0", "-o", str(path),
    )  # fmt: skip
    assert said["bytes"] < 2_000_000
    with browser() as started, open_page(started, path) as page:
        page.locator(".bar", has_text="model").click()
        slices = page.evaluate("raddle.method.timeline.count")
        assert slices > 50_000
        drawn = "document.getElementById('timeline').timelineState().frames.length"
        before = page.evaluate(drawn)
        page.evaluate(COUNT)
        taken = frames(page)
        assert len(taken["draw"]) > before  # it has moved
        calls = page.evaluate("calls") / (len(taken["draw"]) - before)
    print(f"{calls:.0f} strokes a frame, {slices} slices")
    assert 10 < calls < slices / 20
