"""Captures one model of every architecture of six libraries, each in a process of its own; see README.md.

python bench/models/run.py                       # what results.json does not have yet
python bench/models/run.py --again timm          # one library, or one row: --again timm/swin_transformer
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
PROCESSES = 2


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
    parser.add_argument("--again", default="", help="run rows that start with this once more")
    parser.add_argument(
        "--only", default="", help="run rows that start with this and have no result"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--strict", action="store_true", help="try strict torch.export too")
    parser.add_argument(
        "--no-compare", action="store_true", help="capture only, without comparing a step"
    )
    parser.add_argument("--rows", type=int, default=sys.maxsize, help="stop after so many rows")
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
    prefix = options.again or options.only
    for library, (module, rows) in LIBRARIES.items():
        if not (prefix.startswith(library) or library.startswith(prefix)) or not options.rows:
            continue
        if find_spec(module) is None:
            print(f"{library}: skipped, {module} is not installed")
            continue
        by_key = {f"{row.library}/{row.name}": row for row in rows()}
        wanted = [
            key
            for key in by_key
            if key.startswith(prefix) and (options.again or key not in results)
        ]
        pending = [by_key[key] for key in wanted[: options.rows]]
        options.rows -= len(pending)
        for row, result in _in_processes(pending, options):
            key = f"{row.library}/{row.name}"
            before = results.get(key, {})
            kept = {k: v for k, v in before.items() if "strict_export" in k}
            results[key] = {**kept, **result}
            print(f"{key}: {result['outcome']} {result.get('reason', '')[:150]}", flush=True)
            path.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")


def _in_processes(
    rows: list[Any], options: argparse.Namespace
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Measures each row in a forked process, two at a time; the libraries are imported once, before."""
    waiting, running = list(rows), {}
    while waiting or running:
        while waiting and len(running) < PROCESSES:
            row = waiting.pop(0)
            reader, writer = os.pipe()
            if (pid := os.fork()) == 0:
                os.close(reader)
                _measure_in_child(row, options, writer)
            os.close(writer)
            running[pid] = (row, reader, time.monotonic())
        for pid, (row, reader, start) in list(running.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            seconds = time.monotonic() - start
            if not done and seconds > SECONDS:
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                done = pid
            if done:
                del running[pid]
                text = _read_all(reader)
                yield row, {**_result(row, text, status, seconds), "seconds": round(seconds, 1)}
        time.sleep(0.05)


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


def _measure_in_child(row: Any, options: argparse.Namespace, writer: int) -> None:
    """Runs in the child: writes the result to the pipe as JSON and ends the process."""
    limit = GIGABYTES * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        from measure import measure

        text = json.dumps(measure(row, strict=options.strict, compared=not options.no_compare))
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
