"""Measures the report page: its size, seconds to open, and frame times while a timeline is moved.

python bench/page/run.py        (needs chromium; see README.md)
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
from statistics import median, quantiles
from time import perf_counter

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "reports" / "page"), str(ROOT / "tests")]

from chromium import CHROMIUM, browser, open_page, raddle_json
from timeline_frames import frames

CASES = (("inception_v3", "p100:4x4"), ("inception_v3", "p100:8x4"))  # (model, cluster)


def main() -> None:
    """Write a report for each case, open it in Chromium, and write the measurements to results.json."""
    if CHROMIUM is None:
        print("skipped: there is no chromium on this machine")
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder, browser() as started:
        for model, cluster in CASES:
            path = pathlib.Path(folder) / "page.html"
            report = raddle_json(
                "report", model, "--cluster", cluster, "--batch", "512", "--budget", "5",
                "-o", str(path),
            )  # fmt: skip
            row = {
                "model": model,
                "cluster": cluster,
                "methods": len(report["methods"]),
                "bytes": report["bytes"],
            }
            start = perf_counter()
            with open_page(started, path) as page:
                row["open_s"] = perf_counter() - start
                # The timeline of the method "model" is measured.
                page.locator(".bar", has_text="model").first.click()
                row["slices"] = page.evaluate("raddle.method.timeline.count")
                for movement, times in frames(page, moves=120).items():
                    row[movement] = {
                        "median": median(times), "p95": quantiles(times, n=20)[-1], "max": max(times),
                    }  # fmt: skip
            rows.append(row)
            print(json.dumps(row))
    (pathlib.Path(__file__).parent / "results.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
