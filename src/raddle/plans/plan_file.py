"""Plan files: one versioned JSON that carries all that is needed to simulate, run or verify a plan."""

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
_PLAIN = (
    "devices", "bn", "sync", "bucket", "microbatches", "recompute", "split_backward", "steps", "model",
    "fingerprint", "batch", "dtype", "optimizer", "cluster", "method", "inputs",
    "parameters", "predicted",
)  # fmt: skip
_LATER = {"stages": (), "schedule": "", "workers": (), "order": ()}  # that older files lack

# Counts, with the most that can be lowered in a reasonable time.
_NUMBERS = {"devices": 65_536, "microbatches": 4096, "steps": 4096, "batch": 2**31}
MOST_ELEMENTS = 2**48  # of an input
_TEXTS = ("bn", "sync", "model", "fingerprint", "dtype", "optimizer", "method")
DTYPES = ("float64", "float32", "bfloat16", "float16")


def save(plan: Plan, graph: Graph, path: str | pathlib.Path) -> None:
    write_json(path, to_dict(plan, graph))


def to_dict(plan: Plan, graph: Graph) -> dict[str, Any]:
    return {
        "raddle": VERSION,
        **{name: getattr(plan, name) for name in _PLAIN},
        "recompute": [list(block) for block in plan.recompute],
        "inputs": list(plan.inputs),
        "stages": [list(stage) for stage in plan.stages],
        "schedule": plan.schedule,
        "workers": [list(worker) for worker in plan.workers],
        "order": list(plan.order),
        "tiles": {op.name: write_tiling(op, plan.tiles[op.name]) for op in graph.ops},
        "sums": {
            op.name: write_tiling(op, plan.sums[op.name])
            for op in graph.ops
            if op.name in plan.sums
        },
    }


def read(path: str | pathlib.Path) -> dict[str, Any]:
    """A plan file as plain data: the model that it names has to be captured before it is a plan."""
    data = read_json(path, "plan file")
    if not isinstance(data, dict) or "raddle" not in data:
        raise InputError(f"{quote(path)} is no plan file of raddle: it has no key 'raddle'.")
    if type(data["raddle"]) is not int or data["raddle"] != VERSION:
        raise InputError(
            f"{quote(path)} has version {short(data['raddle'])}, this raddle reads version {VERSION}: "
            "plan again, or install the raddle that wrote it."
        )
    missing = [name for name in (*_PLAIN, "tiles") if name not in data]
    if missing:
        raise InputError(f"{quote(path)} is damaged: it lacks {', '.join(missing)}.")
    wrong = next(_wrong(data), None)
    if wrong:
        raise InputError(f"{quote(path)} is damaged: {wrong}.")
    return data


def _wrong(data: dict[str, Any]) -> Iterator[str]:
    """What cannot be in a plan file."""
    for name, most in _NUMBERS.items():
        least = int(name != "batch")
        if type(data[name]) is not int or not least <= data[name] <= most:
            yield f"{name} is {short(data[name])}, not a count from {least} to {most}"
    if type(data["bucket"]) is not int or type(data["split_backward"]) is not bool:
        yield "bucket is no number of bytes, or split_backward neither true nor false"
    for name in ("recompute", "stages"):
        if not _are_lists(data.get(name, []), str):
            yield f"{name} is {short(data[name])}, not a list of lists of operators"
    if not _are_lists(data.get("workers", []), int):
        yield f"workers is {short(data['workers'])}, not a list of lists of devices"
    if not _are_lists([data.get("order", [])], int):
        yield f"order is {short(data['order'])}, not a list of numbers of slices"
    if not isinstance(data.get("schedule", ""), str):
        yield f"schedule is {short(data['schedule'])}, not a text"
    for name in _TEXTS:
        if not isinstance(data[name], str):
            yield f"{name} is {short(data[name])}, not a text"
    if data["dtype"] not in DTYPES:
        yield f"dtype is {short(data['dtype'])}, not one of {', '.join(DTYPES)}"
    if data["microbatches"] > max(1, data["batch"]):
        yield f"it has {data['microbatches']} micro-batches of {data['batch']} samples"
    if not isinstance(data["inputs"], list) or not all(map(_is_input, data["inputs"])):
        yield f"inputs is {short(data['inputs'])}, not a list of names, shapes and types"
    for name in ("tiles", "parameters", "predicted", "cluster"):
        if not isinstance(data[name], dict) and (name, data[name]) != ("cluster", None):
            yield f"{name} is {short(data[name])}, not an object"
    if not isinstance(data.get("sums", {}), dict):
        yield f"sums is {short(data['sums'])}, not an object"
    if not _are_lists(list(data["parameters"].values()), int):
        yield "parameters is no object of names and shapes"
    yield from _wrong_figures(data["predicted"])
    for name, text in (*data["tiles"].items(), *data.get("sums", {}).items()):
        if not isinstance(text, str):
            yield f"the tiles of {quote(name)} are {short(text)}, not a text"


def _wrong_figures(predicted: dict[str, Any]) -> Iterator[str]:
    """Of what was predicted, the figures that others are compared with."""
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


def _are_lists(given: Any, kind: type) -> bool:
    return isinstance(given, list) and all(
        isinstance(own, list) and all(type(item) is kind for item in own) for own in given
    )


def _is_input(given: Any) -> bool:
    if not isinstance(given, dict):
        return False
    shape = given.get("shape")
    return (
        all(isinstance(given.get(key), str) for key in ("name", "dtype", "letters"))
        and all(type(given.get(key)) is bool for key in ("target", "keyword"))
        and isinstance(shape, list)
        and all(type(extent) is int and extent > 0 for extent in shape)
        and math.prod(shape) <= MOST_ELEMENTS
        and isinstance(getattr(torch, given["dtype"], None), torch.dtype)
    )


def _read_tilings(texts: dict[str, str], ops: dict[str, Op], model: str) -> dict[str, Tiling]:
    found = {}
    for name, text in texts.items():
        if name not in ops:
            raise InputError(
                f"the plan has tiles for {quote(name)}, which '{model}' does not have."
            )
        found[name] = read_tiling(ops[name], text)
    return found


def from_dict(data: dict[str, Any], graph: Graph) -> Plan:
    """The plan for a captured graph, validated."""
    ops = {op.name: op for op in graph.ops}
    plain = {name: data[name] for name in _PLAIN}
    plain["recompute"] = tuple(tuple(block) for block in data["recompute"])
    plain["inputs"] = tuple(data["inputs"])
    later = {name: data.get(name, default) for name, default in _LATER.items()}
    for name in ("stages", "workers"):
        plain[name] = tuple(tuple(own) for own in later[name])
    plain["schedule"], plain["order"] = later["schedule"], tuple(later["order"])
    plan = Plan(tiles={}, **plain)
    if plan.fingerprint and plan.fingerprint != graph.fingerprint():
        validate(plan, graph)  # says so before a tile does that the other graph cannot have
    given = [_read_tilings(data.get(key, {}), ops, graph.name) for key in ("tiles", "sums")]
    plan = replace(plan, tiles=given[0], sums=given[1])
    validate(plan, graph)
    return plan
