"""Output of the verbs: a table or JSON of the same data, and a check of output paths."""

import json
import pathlib
from collections.abc import Callable
from typing import TypeVar

from raddle.errors import InputError

T = TypeVar("T")


def show(value: T, table: Callable[[T], None], *, as_json: bool) -> None:
    """Print a value as JSON, or as a table, which the function `table` prints."""
    if as_json:
        print(json.dumps(value, indent=2))
    else:
        table(value)


def check_folder(path: str) -> None:
    """Raise InputError if the folder of an output file does not exist."""
    if not pathlib.Path(path).resolve().parent.is_dir():
        raise InputError(f"there is no folder for '{path}': make it, or name another file.")
