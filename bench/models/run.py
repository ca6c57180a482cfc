"""Captures one model of every architecture of six libraries, each in a process of its own; see README.md.

python bench/models/run.py                       # what results.json does not have yet
python bench/models/run.py --again --only timm   # one library, or one row: --only timm/swin_transformer
python bench/models/run.py --table               # writes the tables of the README
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
RESULTS = HERE / "results.json"
SECONDS, GIGABYTES = 240, 12  # for one model


def _huggingface() -> Iterable[Any]:
    import huggingface
    import vision

    if find_spec("torchvision") is not None:
        vision.import_torchvision()  # transformers imports it, where it is installed
    return huggingface.rows()


def _vision(name: str) -> Callable[[], Iterable[Any]]:
    def rows() -> Iterable[Any]:
        import vision

        return getattr(vision, name)()  # type: ignore[no-any-return]

    return rows


def _volumes(name: str) -> Callable[[], Iterable[Any]]:
    def rows() -> Iterable[Any]:
        import volumes

        return getattr(volumes, name)()  # type: ignore[no-any-return]

    return rows


# library: (the module that must be installed, its rows)
LIBRARIES: dict[str, tuple[str, Callable[[], Iterable[Any]]]] = {
    "transformers": ("transformers", _huggingface),
    "timm": ("timm", _vision("timm_rows")),
    "torchvision": ("torchvision", _vision("torchvision_rows")),
    "segmentation-models-pytorch": ("segmentation_models_pytorch", _vision("smp_rows")),
    "MONAI": ("monai", _volumes("monai_rows")),
    "diffusers": ("diffusers", _volumes("diffusers_rows")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="rows that start with this, as timm/swin")
    parser.add_argument("--again", action="store_true", help="rows that have a result too")
    parser.add_argument(
        "--retry",
        action="store_true",
        help="rows that were not captured, or with opaque operators, too",
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--strict", action="store_true", help="try strict torch.export too")
    parser.add_argument(
        "--no-compare", action="store_true", help="capture only, without comparing a step"
    )
    parser.add_argument("--rows", type=int, default=sys.maxsize, help="stop after so many rows")
    parser.add_argument("--processes", type=int, default=2, help="models at the same time")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        import table

        table.write(json.loads(arguments.results.read_text()))
        return
    sweep(arguments.results, arguments)


def sweep(path: Path, options: argparse.Namespace) -> None:
    """Measures all rows without a result; writes the file after every row."""
    results = json.loads(path.read_text()) if path.exists() else {}
    prefix = options.only
    for library, (module, rows) in LIBRARIES.items():
        if not (prefix.startswith(library) or library.startswith(prefix)) or not options.rows:
            continue
        if find_spec(module) is None:
            print(f"{library}: skipped, {module} is not installed")
            continue
        by_key = {f"{row.library}/{row.name}": row for row in rows()}
        wanted = [
            key for key in by_key if key.startswith(prefix) and _is_wanted(key, results, options)
        ]
        pending = [by_key[key] for key in wanted[: options.rows]]
        options.rows -= len(pending)
        for row, result in _in_processes(pending, results, options):
            key = f"{row.library}/{row.name}"
            old = results.get(key, {})
            kept = {k: old[k] for k in old if "export" in k or k == "before"}
            results[key] = {**kept, **result}
            print(f"{key}: {result['outcome']} {result.get('reason', '')[:150]}", flush=True)
            path.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")


def _is_wanted(key: str, results: dict[str, Any], options: argparse.Namespace) -> bool:
    """Returns whether to measure a row: it has no result, or results are asked for once more."""
    if "outcome" not in results.get(key, {}) or options.again:
        return True
    is_captured = results[key]["outcome"] == "captured" and not results[key].get("opaque")
    return bool(options.retry and not is_captured)


def _in_processes(
    rows: list[Any], results: dict[str, Any], options: argparse.Namespace
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Measures each row in a forked process; the libraries are imported once, before."""
    waiting = list(rows)
    running: dict[int, tuple[Any, int, float]] = {}  # by process: row, end of its pipe, start
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        while waiting or running:
            while waiting and len(running) < options.processes:
                row = waiting.pop(0)
                is_exported = "export" in results.get(f"{row.library}/{row.name}", {})
                pid, reader = _start(row, options, is_exported)
                running[pid] = row, reader, time.monotonic()
            for pid, (row, reader, start) in list(running.items()):
                seconds = time.monotonic() - start
                if seconds > SECONDS:
                    os.kill(pid, signal.SIGKILL)
                done, status = os.waitpid(pid, 0 if seconds > SECONDS else os.WNOHANG)
                if done:
                    del running[pid]
                    result = _result(row, _read_all(reader), status, seconds)
                    yield row, {**result, "seconds": round(seconds, 1)}
            time.sleep(0.05)
    finally:  # the sweep was ended
        for pid in running:
            os.kill(pid, signal.SIGKILL)


def _start(row: Any, options: argparse.Namespace, is_exported: bool) -> tuple[int, int]:
    """Forks a process that measures a row; returns its number and the pipe for its result."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(reader)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _measure_in_child(row, options, is_exported, writer)
    os.close(writer)
    return pid, reader


def _result(row: Any, text: str, status: int, seconds: float) -> dict[str, Any]:
    if text:
        result: dict[str, Any] = json.loads(text)
        return result
    why = (
        f"took longer than {SECONDS} s"
        if seconds > SECONDS
        else f"the process ended with status {status}"
    )
    return {"library": row.library, "name": row.name, "outcome": "ended", "reason": why}


def _measure_in_child(
    row: Any, options: argparse.Namespace, is_exported: bool, writer: int
) -> None:
    """Runs in the child: writes the result to the pipe as JSON and ends the process."""
    limit = GIGABYTES * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        from measure import measure

        text = json.dumps(
            measure(row, is_exported, strict=options.strict, compared=not options.no_compare)
        )
        path = f"/proc/self/fd/{writer}"
        with open(path, "w") as pipe:
            pipe.write(text)
    finally:
        os._exit(0)


def _read_all(reader: int) -> str:
    with os.fdopen(reader) as pipe:
        return pipe.read()


if __name__ == "__main__":
    main()
