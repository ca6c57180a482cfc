"""Loads a workload from a user's `path/to/file.py:function`, and checks what the function returns.

A workload is a model with one example batch and its loss (workload.py).
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from raddle.errors import InputError
from raddle.graph.arguments import leaves
from raddle.graph.supervised import Loss, supervised
from raddle.zoo.losses import output_loss
from raddle.zoo.workload import Workload


@dataclass(frozen=True)
class UserFunction:
    """A function found in a user's file."""

    spec: str  # path/to/file.py:function
    folder: Path  # of the file; the function may import from it
    function: Callable[..., Any]


def is_file_spec(spec: str) -> bool:
    """Returns whether `spec` names a file; else it names a model of the zoo."""
    return spec.endswith(".py") or ".py:" in spec


def find_function(spec: str) -> UserFunction:
    """Imports the file and finds the function in it."""
    file, _, name = spec.rpartition(":")
    if not file.endswith(".py") or not name:
        raise InputError(f"{spec} names no function: write {spec.rstrip(':')}:FUNCTION.")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"no file {file} in {Path.cwd()}: check the path.")
    module = _import_file(path)
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{file} has no function {name!r}: {_advice(module, name)}")
    return UserFunction(spec, path.parent, function)


def call_function(user: UserFunction, batch: int | None) -> Workload:
    """Calls the function, with `batch=` if a batch is given; returns its result as a checked workload."""
    arguments = _arguments(user, batch)
    # While the function runs, it may import other files of its folder.
    with _import_folder(user.folder), _report_errors(user.spec):
        result = user.function(**arguments)
    if isinstance(result, Workload):
        return result
    workload = _to_workload(user.spec, result)
    if workload is None:
        raise InputError(
            f"{user.spec} returned {_type_names(result)}: "
            "return (module, batch, loss) with loss(module, batch), (module, batch) or a zoo.Workload."
        )
    return workload


def _arguments(user: UserFunction, batch: int | None) -> dict[str, int]:
    """Returns the keyword arguments to call the function with; raises InputError if it needs others."""
    parameter = inspect.signature(user.function).parameters.get("batch")
    if parameter is None and batch is not None:
        raise InputError(
            f"{user.spec} takes no batch, yet {batch} samples were asked for: "
            "add the parameter batch to it, or ask for no batch."
        )
    if parameter is not None and batch is None and parameter.default is parameter.empty:
        raise InputError(f"{user.spec} has no default batch: ask for one, as with --batch 32.")
    return {} if batch is None else {"batch": batch}


def _to_workload(name: str, result: object) -> Workload | None:
    """Returns a workload from the tuple that a function returned; None if the tuple is not as expected."""
    match result:
        case (nn.Module() as model, batch):
            # The function gave no loss: output_loss makes a scalar of the model's output (losses.py).
            loss: Loss = supervised(output_loss, targets=0)
        case (nn.Module() as model, batch, given) if callable(given):
            loss = given
        case (nn.Module(), _, _, given) if callable(given):
            raise InputError(
                f"{name} returned (module, inputs, targets, loss), the former contract: return (module, "
                "(*inputs, *targets), raddle.supervised(loss))."
            )
        case _:
            return None
    tensors = [leaf for _, leaf in leaves(batch) if isinstance(leaf, Tensor)]
    return Workload(name, model, batch, loss) if tensors else None


def _type_names(x: object) -> str:
    """Returns the type of an object in words, as "(Linear, Tensor)" for a tuple."""
    if isinstance(x, tuple | list):
        return f"({', '.join(_type_names(item) for item in x)})"
    return type(x).__name__


def _import_file(path: Path) -> ModuleType:
    """Imports a Python file and returns its module."""
    # A unique module name: a user's `torch.py` must not replace the module torch.
    name = f"raddle_user_file_{path.stem}"
    spec = spec_from_file_location(name, path)
    # For a path that ends in .py, importlib always gives a spec and a loader; mypy does not know this.
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up here by its name
    with _import_folder(path.parent), _report_errors(str(path)):
        spec.loader.exec_module(module)
    return module


def _advice(module: ModuleType, name: str) -> str:
    """Returns the end of the error about a missing function: functions with similar names, or all."""
    functions = [
        key
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    near = get_close_matches(name, functions) or functions
    return f"it has {', '.join(near)}." if near else "define it there."


@contextmanager
def _import_folder(folder: Path) -> Iterator[None]:
    """Puts the folder on sys.path for a while: a file can import its neighbours, as if Python ran it."""
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))


@contextmanager
def _report_errors(source: str) -> Iterator[None]:
    """Turns any exception of the user's code into an InputError that names `source`."""
    try:
        yield
    except Exception as error:
        reason = (str(error).splitlines() or ["no message"])[0]
        raise InputError(
            f"{source} raised {type(error).__name__} ({reason}): mend it and load it again."
        ) from error
