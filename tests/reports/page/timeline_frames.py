"""Pans and zooms a page's timeline with mouse and keyboard, and measures the time of every frame."""

from __future__ import annotations

from typing import Any

WATCH = """() => {
    window.gaps = [];
    let last = performance.now();
    const tick = (now) => {
        gaps.push(now - last);
        last = now;
        window.watched = requestAnimationFrame(tick);
    };
    window.watched = requestAnimationFrame(tick);
}"""
STOP = "() => { cancelAnimationFrame(watched); return gaps; }"


def frames(page: Any, *, moves: int = 60) -> dict[str, list[float]]:
    """Return milliseconds between frames while panning and zooming, and of drawing each frame."""
    canvas = page.locator("#timeline canvas[tabindex]")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.keyboard.press("Escape")
    canvas.focus()
    for _ in range(2):
        page.keyboard.press("+")
    page.mouse.move(*middle)
    page.evaluate(WATCH)
    page.mouse.down()
    for move in range(moves):
        page.mouse.move(middle[0] + 4 * (move if move < moves / 2 else moves - move), middle[1])
    page.mouse.up()
    pan = page.evaluate(STOP)
    page.evaluate(WATCH)
    page.keyboard.down("Control")
    for move in range(moves):
        page.mouse.wheel(0, -60 if move < moves / 2 else 60)
    page.keyboard.up("Control")
    zoom = page.evaluate(STOP)
    drawn = page.evaluate("document.getElementById('timeline').timelineState().frames")
    return {"pan": pan[1:], "zoom": zoom[1:], "draw": drawn}
