"""Runs the tests that use a GPU where there is one, in several processes of pytest at once.

    python bench/runtime/gpu_tests.py [-o results.json]
    python bench/runtime/gpu_tests.py --keyword cpu         # the same tests on the CPU

It needs pytest and hypothesis. After `--seconds` (145), the tests that have not ended are not counted; then
`unfinished` names their group.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 145.0
RUNTIME = "tests/runtime/"
# Name -> files, and which tests of them; KEYWORD stands for the option, "cuda" or "cpu".
GROUPS: dict[str, tuple[list[str], str]] = {
    "kinds": ([RUNTIME + "test_compiled_kinds.py"], "one_graph and KEYWORD"),
    "inductor 1": (
        [RUNTIME + "test_compiled_kinds.py"],
        "kind_compiles and KEYWORD and (attention or conv2d or avg_pool2d)",
    ),
    "inductor 2": (
        [RUNTIME + "test_compiled_kinds.py"],
        "kind_compiles and KEYWORD and not (attention or conv2d or avg_pool2d)",
    ),
    "precision": ([RUNTIME + "test_compiled_precision.py"], "as_precise_as_plain and KEYWORD"),
    "dropout": (
        [RUNTIME + "test_dropout_everywhere.py"],
        "KEYWORD and not compiled_dropout",
    ),
    "dropout inductor": ([RUNTIME + "test_dropout_everywhere.py"], "KEYWORD and compiled_dropout"),
    "host waits": ([RUNTIME + "test_host_waits.py"], "test"),
}


def start(files: list[str], tests: str, report: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow",
        "-k", tests, f"--junitxml={report}", *files,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": "src",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "2",
        "TORCHINDUCTOR_CACHE_DIR": str(report.with_suffix("")),
    }
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], deadline: float) -> tuple[str, bool]:
    """Return the output of a process, and whether it ended before the deadline."""
    try:
        return process.communicate(timeout=max(1.0, deadline - time.monotonic()))[0], True
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0], False


def read(report: Path) -> dict[str, Any]:
    """Return how many tests passed, and the messages of those that failed."""
    cases = list(ET.parse(report).getroot().iter("testcase"))
    failed = {
        case.get("name", ""): (problem.text or "")[-700:]
        for case in cases
        for problem in (*case.findall("failure"), *case.findall("error"))
    }
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    return {"passed": len(cases) - len(failed) - len(skipped), "failed": failed, "skipped": skipped}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", default="")
    parser.add_argument("--keyword", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    began = time.monotonic()
    results, unfinished = dict[str, Any](), dict[str, str]()
    with tempfile.TemporaryDirectory() as folder:
        started = {
            name: (
                start(files, tests.replace("KEYWORD", options.keyword), report),
                report,
            )
            for name, (files, tests) in GROUPS.items()
            if name in options.groups.split(",")
            for report in [Path(folder) / f"{name.replace(' ', '-')}.xml"]
        }
        for name, (process, report) in started.items():
            output, ended = finish(process, began + options.seconds)
            if ended and report.exists():
                results[name] = read(report)
            else:
                unfinished[name] = output[-700:]
            print(f"{name}: {results.get(name) or unfinished[name]}", flush=True)
    report_content = {
        "seconds": round(time.monotonic() - began, 1), "results": results, "unfinished": unfinished,
        "passed": not unfinished and not any(r["failed"] for r in results.values()),
    }  # fmt: skip
    print(f"all passed: {report_content['passed']}", flush=True)
    if options.output:
        Path(options.output).write_text(json.dumps(report_content, indent=1) + "\n")


if __name__ == "__main__":
    main()
