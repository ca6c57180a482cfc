"""Draws the results of run.py --out: samples a second against the rate of the links, predicted dashed.

python bench/sync/plot.py rows.json rates.svg
"""

from __future__ import annotations

import json
import math
import pathlib
import sys
from typing import Any

COLOURS = ("#c0392b", "#7f8c8d", "#2471a3", "#b7950b", "#1e8449")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 420, 60, 50, 30, 170


def draw(rows: list[dict[str, Any]], batch: int) -> str:
    """Return an SVG with a line for each sync kind; the axis of the rates is logarithmic.

    rows: as run.py writes them; batch: samples of a step.
    """
    kinds = [k for k in rows[0]["seconds"] if k in rows[0]["predicted"]]
    rates = [row["link"]["bandwidth"] * 8 / 1e6 for row in rows]  # Mbit/s, as measured
    speeds = [
        batch / s for row in rows for k in kinds for s in (row["seconds"][k], row["predicted"][k])
    ]
    low, high, most = math.log10(rates[0]), math.log10(rates[-1]), 1.05 * max(speeds)

    def x(rate: float) -> float:
        return LEFT + (math.log10(rate) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(speed: float) -> float:
        return HEIGHT - BOTTOM - speed / most * (HEIGHT - BOTTOM - TOP)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18">samples/s of {rows[0]["model"]}-like on {rows[0]["hosts"]} hosts: '
        "measured (lines), predicted (dashed)</text>",
    ]
    for row, rate in zip(rows, rates, strict=True):
        out.append(
            f'<text x="{x(rate):.0f}" y="{HEIGHT - 28}" text-anchor="middle">{row["rate"]}</text>'
        )
    for part in range(5):
        level = most * part / 4
        out.append(
            f'<text x="{LEFT - 8}" y="{y(level) + 4:.0f}" text-anchor="end">{level:.0f}</text>'
        )
        out.append(f'<path d="M{LEFT} {y(level):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
    for kind, colour in zip(kinds, COLOURS, strict=False):
        for what, dashes in (("seconds", ""), ("predicted", ' stroke-dasharray="5 4"')):
            points = [
                (x(rate), y(batch / row[what][kind])) for row, rate in zip(rows, rates, strict=True)
            ]
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            out.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
            )
            if what == "seconds":
                out += [
                    f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points
                ]
        at = TOP + 20 * kinds.index(kind) + 10
        out.append(f'<text x="{WIDTH - RIGHT + 14}" y="{at}" fill="{colour}">{kind}</text>')
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    measured_rows = json.loads(pathlib.Path(sys.argv[1]).read_text())
    pathlib.Path(sys.argv[2]).write_text(draw(measured_rows, measured_rows[0]["batch"]))
