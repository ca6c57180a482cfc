"""Writes the state of a run to a folder, and reads it: one file, in the format of safetensors.

The tensors are called `model/NAME`, `optimizer/state/NAME/ENTRY` and `generator/RANK`. What is no tensor
(learning rates, numbers of steps) is a JSON text in the metadata.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from raddle.errors import InputError, quote
from raddle.files import parse_json
from raddle.runtime.tensor_file import read_tensors, write_tensors

FILE = "checkpoint.safetensors"  # in the folder
VERSION = 1
SETTINGS = "raddle"  # key of the metadata


class RunState(NamedTuple):
    """All that a resumed run needs."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]  # as Trainer.optimizer_state_dict returns it
    generators: list[Tensor]  # states of torch's generator, by rank; see `Trainer.save`


def write_run(folder: str | pathlib.Path, run: RunState) -> None:
    """Writes a state to a folder, which is made if it does not exist."""
    path = pathlib.Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder {quote(path)} cannot be made ({error.strerror}): name another one."
        ) from None
    tensors = {f"model/{name}": tensor for name, tensor in run.model.items()}
    tensors |= {f"generator/{rank}": state for rank, state in enumerate(run.generators)}
    settings = {"version": VERSION, "optimizer": _take_tensors(run.optimizer, "optimizer", tensors)}
    write_tensors(path / FILE, tensors, {SETTINGS: json.dumps(settings)})


def read_run(folder: str | pathlib.Path) -> RunState:
    """Returns the state that a folder has. Raises InputError if it has none, or a damaged one."""
    path = pathlib.Path(folder) / FILE
    tensors, metadata = read_tensors(path)
    try:
        settings = parse_json(metadata.get(SETTINGS, ""))
        if settings["version"] != VERSION:
            raise InputError(
                f"{quote(path)} has version {settings['version']}, this raddle reads version {VERSION}: "
                "save it with this version."
            )
        optimizer = _put_tensors(settings["optimizer"], tensors)
        optimizer["state"], optimizer["param_groups"]
        model = {n.partition("/")[2]: t for n, t in tensors.items() if n.startswith("model/")}
        count = sum(name.startswith("generator/") for name in tensors)
        generators = [tensors[f"generator/{rank}"] for rank in range(count)]
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{quote(path)} is no checkpoint of raddle ({type(error).__name__}: {error}): name the folder "
            "of trainer.save."
        ) from None
    return RunState(model, optimizer, generators)


def _take_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Returns data for JSON; moves tensors to `tensors`, under names that begin with `name`."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        items = {k: _take_tensors(v, f"{name}/{k}", tensors) for k, v in value.items()}
        return {"dict": items}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_take_tensors(v, f"{name}/{i}", tensors) for i, v in enumerate(value)]}
    if isinstance(value, float):
        return {"float": value.hex()}  # exact, and also for infinities
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise InputError(
        f"'{name}' is a {type(value).__name__}, which a checkpoint cannot hold: use numbers and tensors."
    )


def _put_tensors(data: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Returns the value from which `_take_tensors` made the data."""
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {k: _put_tensors(v, tensors) for k, v in content.items()}
    if kind == "float":
        return float.fromhex(content)
    values = [_put_tensors(v, tensors) for v in content]
    return values if kind == "list" else tuple(values)
