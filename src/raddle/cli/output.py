"""What all verbs share: two faces of one piece of data, and files that can be written."""

import json
import pathlib
from collections.abc import Callable
from typing import TypeVar

from raddle.errors import InputError

T = TypeVar("T")


def show(value: T, table: Callable[[T], None], *, as_json: bool) -> None:
    """One piece of data, two faces."""
    if as_json:
        print(json.dumps(value, indent=2))
    else:
        table(value)


def check_folder(path: str) -> None:
    """Refuse to write where there is no folder."""
    if not pathlib.Path(path).resolve().parent.is_dir():
        raise InputError(f"there is no folder for '{path}': make it, or name another file.")
