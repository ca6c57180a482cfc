"""Reads and writes files of the user, with limits and error sentences.

All modules of raddle use it for that.

A file is read within limits (bytes, values, depth), and every problem with it is reported in one sentence.
New content is written to a temporary file, which replaces the old file when it is complete. So a full disk
or an interrupt leaves the old file unchanged.

In all functions, `file_type` is what an error message calls the file ("plan file"). `missing_hint` is the
advice in the message for a file that does not exist: how to get one.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import secrets
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any, BinaryIO, TypeAlias

from raddle.errors import InputError, quote

Path: TypeAlias = str | os.PathLike[str]

MAX_BYTES = 128 * 2**20  # the largest size of a file, after decompression
MAX_VALUES = 4_000_000  # the most values in a JSON file: a value takes about 100 bytes of memory
MAX_DEPTH = 64  # the deepest nesting of lists and objects
MAX_INT = 2**63 - 1  # the largest integer in a file


# -- reading -----------------------------------------------------------------------------------------


def read_bytes(
    path: Path, file_type: str, *, missing_hint: str = "", max_bytes: int = MAX_BYTES
) -> bytes:
    """Returns the content of a file, decompressed if its name ends in .gz."""
    with open_to_read(path, file_type, missing_hint=missing_hint) as file:
        packed = os.fspath(path).endswith(".gz")
        content = _read_up_to(gzip.GzipFile(fileobj=file) if packed else file, max_bytes)
    if len(content) > max_bytes:
        raise InputError(f"{quote(path)} is no {file_type}: it has more than {max_bytes:,} bytes.")
    return content


@contextmanager
def open_to_read(path: Path, file_type: str, *, missing_hint: str = "") -> Iterator[BinaryIO]:
    """Yields a file that is read in parts, as tensors are: the caller checks how much it reads.

    Problems with the file, also those that show in the `with` block, become an InputError.
    """
    advice = f": {missing_hint}" if missing_hint else ""
    try:
        with open(path, "rb") as file:
            yield file
    except InputError:  # of the `with` block; it is a ValueError
        raise
    except FileNotFoundError:
        raise InputError(f"there is no {file_type} {quote(path)}{advice}.") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{quote(path)} cannot be read ({reason}): name a {file_type}.") from None
    except (EOFError, zlib.error, ValueError) as error:  # ValueError: the name has a null character
        raise InputError(f"{quote(path)} cannot be read ({error}): name a {file_type}.") from None


def _read_up_to(file: BinaryIO | gzip.GzipFile, max_bytes: int) -> bytes:
    """Returns the content of a file, or its first bytes if it has more than max_bytes."""
    content = bytearray()
    while len(content) <= max_bytes and (chunk := file.read(2**20)):
        content += chunk
    return bytes(content)


def read_text(
    path: Path, file_type: str, *, missing_hint: str = "", max_bytes: int = MAX_BYTES
) -> str:
    """Returns the text of a file in UTF-8; all line ends become newlines."""
    content = read_bytes(path, file_type, missing_hint=missing_hint, max_bytes=max_bytes)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{quote(path)} is no {file_type}: it is no text in UTF-8 (byte {error.start})."
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def read_json(path: Path, file_type: str, *, missing_hint: str = "") -> Any:
    """Returns the data of a JSON file. Numbers must be finite, and the keys of an object must be unique."""
    text = read_text(path, file_type, missing_hint=missing_hint)
    try:
        return parse_json(text)
    except ValueError as error:
        raise InputError(f"{quote(path)} is no {file_type}: {error}.") from None


def parse_json(text: str | bytes) -> Any:
    """Returns the data of a JSON text, as `json.loads` does, but checks it strictly and within limits.

    Raises ValueError. Its text is the second half of an error sentence ("it has more than ... values").
    """
    text = text if isinstance(text, str) else text.decode("utf-8")
    if sum(map(text.count, ",[{")) > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES:,} values")
    try:
        data = json.loads(
            text,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_refuse_constant,
            object_pairs_hook=_parse_object,
        )
    except RecursionError:
        raise ValueError(_too_deep()) from None
    _check_depth(data)
    if re.search(r"\\u[dD][89a-fA-F]", text):  # a lone surrogate cannot be printed or written
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text in it has half of a character (a lone surrogate)") from None
    return data


def _parse_int(digits: str) -> int:
    """Returns an integer; raises ValueError if it is too large."""
    # Python itself refuses more than 4,300 digits, with another error.
    if len(digits) > 20 or not -MAX_INT <= (value := int(digits)) <= MAX_INT:
        raise ValueError(f"the number {digits[:20]}… is too large")
    return value


def _parse_float(digits: str) -> float:
    """Returns a number; raises ValueError if it is infinite."""
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


def _refuse_constant(name: str) -> float:
    """Raises ValueError for NaN and Infinity."""
    raise ValueError(f"it has {name}, which is no number of JSON")


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object as a dictionary; raises ValueError if a key is repeated."""
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {quote(twice)} is there twice")
    return data


def _check_depth(data: Any) -> None:
    """Raises ValueError if lists and objects are nested too deep."""
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item) if child]
        if not level:
            return
    raise ValueError(_too_deep())


def _children(item: Any) -> list[Any]:
    """Returns the lists and objects directly inside of a list or an object."""
    values = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return [value for value in values if isinstance(value, dict | list)]


def _too_deep() -> str:
    return f"it has more than {MAX_DEPTH} lists and objects within each other"


# -- fields ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fields:
    """A JSON object of a file, whose fields are read by name and checked for their type.

    location: where the object is, in words for an error message ("'plan.json', event 3,"). The methods
    raise InputError if a field is missing or wrong.
    """

    data: Mapping[str, Any]
    location: str

    @staticmethod
    def from_data(data: object, location: str, keys: Sequence[str] = ()) -> Fields:
        """Returns the fields of `data`, after a check that it is an object with these keys."""
        if not isinstance(data, dict):
            raise InputError(f"{location} is damaged: it is {short(data)}, not an object.")
        missing = [key for key in keys if key not in data]
        if missing:
            raise InputError(f"{location} is damaged: it lacks {', '.join(missing)}.")
        return Fields(data, location)

    def number(self, key: str, at_least: float = 0, at_most: float = math.inf) -> float:
        """Returns the field `key`, which must be a number between the limits."""
        value: Any = self.data.get(key)
        if type(value) not in (int, float) or not at_least <= value <= at_most:
            raise self.error(key, f"a number{_range_text(at_least, at_most)}")
        return float(value)

    def count(self, key: str, at_least: int = 0, at_most: int = MAX_INT) -> int:
        """Returns the field `key`, which must be a whole number between the limits."""
        value = self.data.get(key)
        if type(value) is not int or not at_least <= value <= at_most:
            raise self.error(key, f"a whole number{_range_text(at_least, at_most)}")
        return int(value)

    def text(self, key: str) -> str:
        """Returns the field `key`, which must be a text."""
        value = self.data.get(key)
        if not isinstance(value, str):
            raise self.error(key, "a text")
        return value

    def list(self, key: str) -> list[Any]:
        """Returns the field `key`, which must be a list."""
        value = self.data.get(key)
        if not isinstance(value, list):
            raise self.error(key, "a list")
        return value

    def object(self, key: str) -> Fields:
        """Returns the fields of the object in the field `key`."""
        if not isinstance(self.data.get(key), dict):
            raise self.error(key, "an object")
        return Fields(self.data[key], f"{self.location}, {key},")

    def error(self, key: str, expected: str) -> InputError:
        """Returns the exception for a field that is missing or wrong. expected: such as "a list"."""
        if key not in self.data:
            return InputError(f"{self.location} is damaged: it has no {key}, which is {expected}.")
        value = short(self.data[key])
        return InputError(f"{self.location} is damaged: {quote(key)} is {value}, not {expected}.")


def _range_text(at_least: float, at_most: float) -> str:
    """Returns the limits of a number in words, such as " from 0 to 1"; "" without limits."""
    if at_most in (math.inf, MAX_INT):
        return f" from {at_least} on" if at_least > -math.inf else ""
    return f" from {at_least} to {at_most}"


# -- writing -----------------------------------------------------------------------------------------


def write_atomically(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Writes a file. A reader sees either the old content or the new content, never a part.

    durable: wait until the content is on the disk.
    """
    with replace_atomically(path, durable=durable) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def write_json(path: Path, data: Any) -> None:
    """Writes data for `read_json`; raises ValueError if a number is not finite."""
    write_atomically(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


@contextmanager
def replace_atomically(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Yields a file to write, which replaces the file at `path` if the `with` block ends without an error.

    Links are followed, and permissions are kept. A pipe or a device (/dev/stdout) is written directly.
    durable: wait until the content is on the disk before the file is replaced.
    """
    try:
        if _is_stream(path):
            with open(path, "wb") as file:
                yield file
        else:
            with _temporary_file(os.path.realpath(path), durable) as file:
                yield file
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"{quote(path)} cannot be written ({reason}): name another file."
        ) from None


def _is_stream(path: Path) -> bool:
    """Returns whether a path is a pipe, a device or an open file, which cannot be replaced."""
    if os.path.abspath(path).startswith(("/dev/std", "/dev/fd/", "/proc/")):
        return True
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextmanager
def _temporary_file(target: str, durable: bool) -> Iterator[BinaryIO]:
    """Yields a temporary file in the same folder, which is renamed to `target` at the end."""
    before = _existing_status(target)
    temporary = os.path.join(os.path.dirname(target), f".raddle-{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if before is not None:
                _copy_owner_and_mode(descriptor, before)
            yield file
            file.flush()
            if durable:
                os.fsync(descriptor)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _existing_status(target: str) -> os.stat_result | None:
    """Returns the status of the file to be replaced; None if there is no such file.

    Raises OSError if the file cannot be written.
    """
    if os.path.isdir(target):
        raise IsADirectoryError(21, "Is a directory")  # 21: errno.EISDIR
    if not os.path.exists(target):
        return None
    if not os.access(target, os.W_OK):
        raise PermissionError(13, "Permission denied")  # 13: errno.EACCES
    return os.stat(target)


def _copy_owner_and_mode(descriptor: int, before: os.stat_result) -> None:
    """Gives the new file the owner and the permissions of the old one, whose status is `before`."""
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        with suppress(OSError):  # only root can change the owner
            os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


# -- files between processes of one job --------------------------------------------------------------


def write_scratch(path: Path, data: Any) -> None:
    """Writes data for another process of the same job, in a private folder; numbers may be NaN."""
    write_atomically(path, json.dumps(data), durable=False)


def read_scratch(path: Path) -> Any:
    """Returns the data that `write_scratch` wrote; raises OSError if the file does not exist yet."""
    with open(path, "rb") as file:
        return json.loads(file.read())
