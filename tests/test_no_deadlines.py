"""No test asserts how long something took, and no test has a deadline: the machine may be busy."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
CLOCKS = {
    "perf_counter",
    "monotonic",
    "time",
    "process_time",
    "thread_time",
    "perf_counter_ns",
    "time_ns",
}
TIMEOUTS_FILE = TESTS / "timeouts.py"  # its only assertion ends a hang


def test_no_assertion_reads_a_clock() -> None:
    """Instead, count events or wait for them (`timeouts.py`). `bench/` measures durations."""
    paths = sorted({*TESTS.rglob("*.py")} - {TIMEOUTS_FILE})
    lines_by_file = {
        str(p.relative_to(TESTS)): [*assertions_of_durations(p.read_text())] for p in paths
    }
    assert {path: lines for path, lines in lines_by_file.items() if lines} == {}


def test_an_assertion_that_reads_a_clock_is_seen() -> None:
    texts = [
        "assert time.monotonic() - begun < 3",
        "assert perf_counter() < end",
        "from time import perf_counter as now\nassert 1 <= now() - begun",
        "assert job.time() == 3\nassert begun < end\nclock = time.monotonic()",
    ]
    assert [[*assertions_of_durations(text)] for text in texts] == [[1], [1], [2], []]


def test_examples_and_draws_may_take_any_time() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check


def assertions_of_durations(text: str) -> Iterator[int]:
    """The line numbers of assertions that call a clock of the module `time`."""
    tree = ast.parse(text)
    names = CLOCKS - {"time"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            names |= {a.asname or a.name for a in node.names if a.name in CLOCKS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and any(_calls_clock(n, names) for n in ast.walk(node)):
            yield node.lineno


def _calls_clock(node: ast.AST, names: set[str]) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr=attr)):
            return attr in CLOCKS
        case ast.Call(func=ast.Name(id=name)):
            return name in names
    return False
