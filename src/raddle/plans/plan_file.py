"""Plan files: a plan as JSON, with all that is needed to simulate, run or verify it.

A plan is read in two steps: `read` returns the checked data of the file, which names the model; when the
model is captured, `from_dict` makes the plan for its graph.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator
from dataclasses import replace
from reprlib import repr as short
from typing import Any

import torch

from raddle.errors import InputError, quote
from raddle.files import read_json, write_json
from raddle.graph.graph import Graph, Op
from raddle.plans.notation import read_tiling, write_tiling
from raddle.plans.plan import Plan
from raddle.plans.tiling import Tiling
from raddle.plans.validation import validate

VERSION = 1
# Fields of Plan that are written as they are, or as lists.
_PLAIN_KEYS = (
    "devices", "bn", "sync", "bucket", "microbatches", "recompute", "split_backward", "steps", "model",
    "fingerprint", "batch", "dtype", "optimizer", "cluster", "method", "inputs",
    "parameters", "predicted",
)  # fmt: skip
# Keys that older files lack, with their defaults.
_OPTIONAL_KEYS = {
    "stages": (), "schedule": "", "workers": (), "order": (), "dropout": "native",
    "precision": "float32",
}  # fmt: skip

# The largest counts that can be lowered to a program in a reasonable time.
_COUNT_LIMITS = {"devices": 65_536, "microbatches": 4096, "steps": 4096, "batch": 2**31}
MAX_ELEMENTS = 2**48  # of an input
_TEXT_KEYS = ("bn", "sync", "model", "fingerprint", "dtype", "optimizer", "method")
DTYPES = ("float64", "float32", "bfloat16", "float16")


def save(plan: Plan, graph: Graph, path: str | pathlib.Path) -> None:
    """Writes a plan file."""
    write_json(path, to_dict(plan, graph))


def to_dict(plan: Plan, graph: Graph) -> dict[str, Any]:
    """Converts a plan to the data of a plan file; tilings become text (notation.py)."""
    return {
        "raddle": VERSION,
        **{name: getattr(plan, name) for name in _PLAIN_KEYS},
        "dropout": plan.dropout,
        "precision": plan.precision,
        "recompute": [list(block) for block in plan.recompute],
        "inputs": list(plan.inputs),
        "stages": [list(stage) for stage in plan.stages],
        "schedule": plan.schedule,
        "workers": [list(worker) for worker in plan.workers],
        "order": list(plan.order),
        "tiles": {op.name: write_tiling(op, plan.tiles[op.name]) for op in graph.ops},
        # Where the partial results of an operator are added, if the plan says so; written like its tiles.
        "sums": {
            op.name: write_tiling(op, plan.sums[op.name])
            for op in graph.ops
            if op.name in plan.sums
        },
    }


def read(path: str | pathlib.Path) -> dict[str, Any]:
    """Returns the data of a plan file. Raises InputError if a key is missing or has a wrong type."""
    data = read_json(path, "plan file")
    if not isinstance(data, dict) or "raddle" not in data:
        raise InputError(f"{quote(path)} is no plan file of raddle: it has no key 'raddle'.")
    if type(data["raddle"]) is not int or data["raddle"] != VERSION:
        raise InputError(
            f"{quote(path)} has version {short(data['raddle'])}, this raddle reads version {VERSION}: "
            "plan again, or install the raddle that wrote it."
        )
    missing = [name for name in (*_PLAIN_KEYS, "tiles") if name not in data]
    if missing:
        raise InputError(f"{quote(path)} is damaged: it lacks {', '.join(missing)}.")
    defect = next(_defects(data), None)
    if defect:
        raise InputError(f"{quote(path)} is damaged: {defect}.")
    return data


def _defects(data: dict[str, Any]) -> Iterator[str]:
    """Yields a phrase for each wrong entry of a plan file. data: the file; Plan explains its keys."""
    for name, largest in _COUNT_LIMITS.items():
        smallest = int(name != "batch")  # batch 0: the plan names none
        if type(data[name]) is not int or not smallest <= data[name] <= largest:
            yield f"{name} is {short(data[name])}, not a count from {smallest} to {largest}"
    if type(data["bucket"]) is not int or type(data["split_backward"]) is not bool:
        yield "bucket is no number of bytes, or split_backward neither true nor false"
    for name in ("recompute", "stages"):
        if not _is_list_of_lists(data.get(name, []), str):
            yield f"{name} is {short(data[name])}, not a list of lists of operators"
    if not _is_list_of_lists(data.get("workers", []), int):
        yield f"workers is {short(data['workers'])}, not a list of lists of devices"
    if not _is_list_of_lists([data.get("order", [])], int):
        yield f"order is {short(data['order'])}, not a list of numbers of bundles"
    for name in ("schedule", "dropout", "precision"):
        if not isinstance(data.get(name, ""), str):
            yield f"{name} is {short(data[name])}, not a text"
    for name in _TEXT_KEYS:
        if not isinstance(data[name], str):
            yield f"{name} is {short(data[name])}, not a text"
    if data["dtype"] not in DTYPES:
        yield f"dtype is {short(data['dtype'])}, not one of {', '.join(DTYPES)}"
    if data["microbatches"] > max(1, data["batch"]):
        yield f"it has {data['microbatches']} micro-batches for {data['batch']} samples"
    if not isinstance(data["inputs"], list) or not all(map(_is_input, data["inputs"])):
        yield f"inputs is {short(data['inputs'])}, not a list of names, shapes and types"
    for name in ("tiles", "parameters", "predicted", "cluster"):
        if not isinstance(data[name], dict) and (name, data[name]) != ("cluster", None):
            yield f"{name} is {short(data[name])}, not an object"
    if not isinstance(data.get("sums", {}), dict):
        yield f"sums is {short(data['sums'])}, not an object"
    if not _is_list_of_lists(list(data["parameters"].values()), int):
        yield "parameters is no object of names and shapes"
    yield from _prediction_defects(data["predicted"])
    for name, text in (*data["tiles"].items(), *data.get("sums", {}).items()):
        if not isinstance(text, str):
            yield f"the tiling of {quote(name)} is {short(text)}, not a text"


def _prediction_defects(predicted: dict[str, Any]) -> Iterator[str]:
    """Yields a phrase for each wrong predicted metric that other code compares or draws.

    `history` is that of the search: rows of seconds, plans proposed so far, and the best step time in ms.
    """
    for name in ("step_ms", "search_s", "lower_bound_ms"):
        value = predicted.get(name)
        if value is not None and (type(value) not in (int, float) or value < 0):
            yield f"the predicted {name} is {short(value)}, not a number from 0 on"
    if predicted.get("step_ms") == 0:
        yield "the predicted step_ms is 0"
    history = predicted.get("history") or []
    if not isinstance(history, list) or not all(
        isinstance(row, list) and len(row) == 3 and all(type(n) in (int, float) for n in row)
        for row in history
    ):
        yield f"the predicted history is {short(history)}, not a list of seconds, proposals and times"


def _is_list_of_lists(data: Any, kind: type) -> bool:
    return isinstance(data, list) and all(
        isinstance(row, list) and all(type(item) is kind for item in row) for row in data
    )


def _is_input(data: Any) -> bool:
    """Returns whether an entry of `inputs` is as `describe_inputs` (plan.py) writes it."""
    if not isinstance(data, dict):
        return False
    shape = data.get("shape")
    return (
        all(isinstance(data.get(key), str) for key in ("name", "dtype", "letters"))
        and isinstance(shape, list)
        and all(type(extent) is int and extent > 0 for extent in shape)
        and math.prod(shape) <= MAX_ELEMENTS
        and isinstance(getattr(torch, data["dtype"], None), torch.dtype)
    )


def _read_tilings(texts: dict[str, str], ops: dict[str, Op], model: str) -> dict[str, Tiling]:
    tilings = {}
    for name, text in texts.items():
        if name not in ops:
            raise InputError(
                f"the plan has tiles for {quote(name)}, which '{model}' does not have."
            )
        tilings[name] = read_tiling(ops[name], text)
    return tilings


def from_dict(data: dict[str, Any], graph: Graph) -> Plan:
    """Returns the plan in the data of a file, validated for a captured graph."""
    ops = {op.name: op for op in graph.ops}
    fields = {name: data[name] for name in _PLAIN_KEYS}
    fields["recompute"] = tuple(tuple(block) for block in data["recompute"])
    fields["inputs"] = tuple(data["inputs"])
    optional = {name: data.get(name, default) for name, default in _OPTIONAL_KEYS.items()}
    for name in ("stages", "workers"):
        fields[name] = tuple(tuple(row) for row in optional[name])
    fields["schedule"], fields["order"] = optional["schedule"], tuple(optional["order"])
    fields["dropout"], fields["precision"] = optional["dropout"], optional["precision"]
    plan = Plan(tiles={}, **fields)
    if plan.fingerprint and plan.fingerprint != graph.fingerprint():
        validate(plan, graph)  # raises: a clearer error than tiles that do not fit another graph
    tilings = [_read_tilings(data.get(key, {}), ops, graph.name) for key in ("tiles", "sums")]
    plan = replace(plan, tiles=tilings[0], sums=tilings[1])
    validate(plan, graph)
    return plan
