"""Published bus bandwidths of nccl-tests (bench/collectives/published.csv) come out within 20 %."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "collectives" / "run.py"
spec = importlib.util.spec_from_file_location("bench_collectives", SCRIPT)
assert spec is not None
assert spec.loader is not None
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)
ROWS = run.comparisons()

# (preset, devices, collective, MiB, source): the rows that are further off; the README gives the reasons.
MISSED = {
    ("h100", 64, "all_reduce", 1024, "nccl-tests-309"),
    ("h100", 64, "all_reduce", 8192, "nccl-tests-309"),
    ("p5", 16, "all_gather", 256, "crazyguitar"),
    ("p5", 128, "all_reduce", 256, "crazyguitar"),
}


@pytest.mark.parametrize("use", ["fitted", "held out"])
def test_published_figures_come_out(use: str) -> None:
    missed = {
        (row.preset, row.devices, str(row.kind), row.mib, row.source)
        for row in ROWS
        if row.use == use and abs(row.error) > 0.2
    }
    assert missed == (MISSED if use == "held out" else set())


def test_every_row_has_a_use_and_a_source_in_the_readme() -> None:
    readme = SCRIPT.with_name("README.md").read_text()
    assert {row.use for row in ROWS} == {"fitted", "held out"}
    assert all(f"`{row.source}`" in readme for row in ROWS)
