"""Plan files: one versioned JSON that carries all that is needed to simulate, run or verify a plan."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plan.notation import read_tiling, write_tiling
from raddle.plan.plan import Plan, validate

VERSION = 1
_PLAIN = (
    "devices", "bn", "sync", "microbatches", "steps", "model", "fingerprint", "batch", "dtype", "optimizer",
    "cluster", "method", "predicted",
)  # fmt: skip


def save(plan: Plan, graph: Graph, path: str | pathlib.Path) -> None:
    pathlib.Path(path).write_text(json.dumps(to_dict(plan, graph), indent=1) + "\n")


def to_dict(plan: Plan, graph: Graph) -> dict[str, Any]:
    return {
        "raddle": VERSION,
        **{name: getattr(plan, name) for name in _PLAIN},
        "recompute": sorted(plan.recompute),
        "tiles": {op.name: write_tiling(op, plan.tiles[op.name]) for op in graph.ops},
    }


def read(path: str | pathlib.Path) -> dict[str, Any]:
    """A plan file as plain data: the model that it names has to be captured before it is a plan."""
    try:
        data = json.loads(pathlib.Path(path).read_text())
    except FileNotFoundError:
        raise InputError(f"there is no plan file '{path}'.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"'{path}' is no plan file: {error}.") from None
    if not isinstance(data, dict) or "raddle" not in data:
        raise InputError(f"'{path}' is no plan file of raddle: it has no key 'raddle'.")
    if data["raddle"] != VERSION:
        raise InputError(
            f"'{path}' has version {data['raddle']}, this raddle reads version {VERSION}: "
            "plan again, or install the raddle that wrote it."
        )
    missing = [name for name in (*_PLAIN, "recompute", "tiles") if name not in data]
    if missing:
        raise InputError(f"'{path}' is damaged: it lacks {', '.join(missing)}.")
    return data


def from_dict(data: dict[str, Any], graph: Graph) -> Plan:
    """The plan for a captured graph, validated."""
    ops = {op.name: op for op in graph.ops}
    plan = Plan(
        tiles={}, recompute=frozenset(data["recompute"]), **{name: data[name] for name in _PLAIN}
    )
    if plan.fingerprint != graph.fingerprint():
        validate(plan, graph)
    tiles = {}
    for name, text in data["tiles"].items():
        if name not in ops:
            raise InputError(
                f"the plan has tiles for '{name}', which '{graph.name}' does not have."
            )
        tiles[name] = read_tiling(ops[name], text)
    plan = Plan(tiles=tiles, recompute=plan.recompute, **{name: data[name] for name in _PLAIN})
    validate(plan, graph)
    return plan
