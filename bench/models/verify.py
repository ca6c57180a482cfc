"""Verifies plans of a covering part of the models: equal to the plain step on 2 and 3 ranks; see README.md.

python bench/models/verify.py                       # what verified.json does not have yet
python bench/models/verify.py --again --only timm   # one library, or one row
python bench/models/verify.py --list                # the rows, and why each was chosen
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
RESULTS, VERIFIED = HERE / "results.json", HERE / "verified.json"
SECONDS = 300  # for one model
SAMPLES = 6
LARGEST = 3_000_000  # parameters: two trainings in float64, three copies of each, must end in time
# Devices that compute slowly and links that cost nothing: what is fastest is split, not on one device.
CLUSTER = """
devices: {slow: {flops: {float32: 1 GFLOP/s}, memory: 64 GB, bandwidth: 100 MB/s}}
nodes: [{devices: [%s], link: {bandwidth: 1000 GB/s, latency: 0 us}}]
"""
# By library, a method that splits other dimensions than the samples.
SPLITS = {"transformers": "model"}
Rows = dict[str, dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="rows that start with this, as timm/swin")
    parser.add_argument("--again", action="store_true", help="rows that have a result too")
    parser.add_argument("--rows", type=int, default=sys.maxsize, help="stop after so many rows")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--verified", type=Path, default=VERIFIED)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = covering_quarter(json.loads(options.results.read_text()))
    if options.list:
        print("\n".join(f"{key}: {why}" for key, why in chosen.items()))
        return
    verified = json.loads(options.verified.read_text()) if options.verified.exists() else {}
    pending = [k for k in chosen if k.startswith(options.only)]
    pending = [k for k in pending if options.again or k not in verified]
    for key, result in _in_processes(pending[: options.rows]):
        verified[key] = result
        print(f"{key}: {result['outcome']} {result.get('reason', '')[:200]}", flush=True)
        text = json.dumps(dict(sorted(verified.items())), indent=1)
        options.verified.write_text(text + "\n")


def covering_quarter(results: Rows) -> dict[str, str]:
    """Returns a quarter of the captured rows of each library, and why each was chosen.

    First rows that have a kind of operator that no row before has, then the smallest others.
    """
    rows = {
        key: row for key, row in results.items()
        if row.get("outcome") in ("captured", "unequal", "not compared")
        and row.get("parameters", 0) <= LARGEST
    }  # fmt: skip
    covered: set[str] = set()
    chosen: dict[str, str] = {}
    libraries = dict.fromkeys(row["library"] for row in rows.values())
    for library in libraries:
        of_library = {key: row for key, row in rows.items() if row["library"] == library}
        captured = [r for r in results.values() if r["library"] == library and "ops" in r]
        count = -(-len(captured) // 4)
        picked: dict[str, str] = {}
        # rows with many kinds first: fewer rows then cover all kinds
        for key, row in sorted(of_library.items(), key=lambda item: -len(_kinds(item[1]))):
            new = _kinds(row) - covered
            if new and len(picked) < count:
                picked[key] = "first with " + ", ".join(sorted(new))
                covered |= new
        for key in sorted(of_library, key=lambda k: of_library[k]["ops"]):
            if len(picked) < count:
                picked.setdefault(key, "small")
        chosen.update(picked)
    return chosen


def _kinds(row: dict[str, Any]) -> set[str]:
    """Returns the kinds of operators of a row; of opaque operators, the calls."""
    return {*row.get("kinds", []), *(op["kind"] for op in row.get("opaque", []))}


def _in_processes(keys: list[str]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Verifies each row in a forked process; the libraries are imported once, before."""
    from run import LIBRARIES

    rows = {}
    for library in dict.fromkeys(key.partition("/")[0] for key in keys):
        rows.update({f"{row.library}/{row.name}": row for row in LIBRARIES[library][1]()})
    for key in keys:
        start = time.monotonic()
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(reader)
            signal.alarm(SECONDS)
            with os.fdopen(writer, "w") as pipe:
                for plan, result in verify_row(rows[key]):
                    pipe.write(json.dumps([plan, result]) + "\n")
                    pipe.flush()
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            plans = dict(json.loads(line) for line in pipe)
        _, status = os.waitpid(pid, 0)
        unequal = [name for name, plan in plans.items() if not plan["holds"]]
        result: dict[str, Any] = {"outcome": "equal", "plans": plans}
        if unequal:
            result |= {
                "outcome": "not equal",
                "reason": f"{unequal[0]}: {plans[unequal[0]]['why']}",
            }
        elif status:
            result |= {"outcome": "ended", "reason": f"after {len(plans)} plans, status {status}"}
        yield key, {**result, "seconds": round(time.monotonic() - start, 1)}


def verify_row(row: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yields the results of each plan of one model."""
    import tempfile

    import huggingface
    import torch
    import vision
    import volumes

    import raddle

    torch.set_num_threads(1)
    torch.manual_seed(0)
    for module in (huggingface, vision, volumes):
        module.N = SAMPLES  # type: ignore[attr-defined]
    for method in ("data", SPLITS.get(row.library, "spatial"), "auto"):
        for ranks in (2, 3):
            example = row.build()
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(CLUSTER % ", ".join(["slow"] * ranks))
                file.flush()
                name = f"{method} on {ranks}"
                try:
                    result = raddle.plan(
                        example.model, example.batch, example.loss,
                        cluster=file.name, method=method, budget=2,
                    )  # fmt: skip
                    verdict = raddle.verify(result, steps=1)
                except raddle.InputError as error:
                    yield name, {"holds": False, "why": str(error)[:600], "refused": True}
                    continue
            tiles = [len(t.boxes) for t in result.plan.tiles.values()]
            failed = [c for c in verdict["checks"] if not c["holds"]]
            yield name, {
                "holds": bool(verdict.holds),
                "split": sum(n > 1 for n in tiles), "ops": len(tiles),
                "why": str(verdict["failure"] or failed)[:600],
            }  # fmt: skip


if __name__ == "__main__":
    main()
