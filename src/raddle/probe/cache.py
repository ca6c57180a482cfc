"""Stores the measurements of `raddle probe` in a cache: one JSON file in the user's cache folder.

The file maps a key to an entry {"value": the measurement, "sum": a checksum}. machine.py makes the keys, of
the host, its cores, the version of torch and the number of ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from raddle.errors import InputError
from raddle.files import read_json, write_atomically


def path() -> Path:
    """Return $XDG_CACHE_HOME/raddle/probe.json; without this variable, the same under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return folder / "raddle" / "probe.json"


def recall(key: str) -> dict[str, Any] | None:
    """Return the measurement stored under `key`; None if there is none or the file is damaged."""
    entry = _read().get(key)
    if not isinstance(entry, dict) or not isinstance(entry.get("value"), dict):
        return None
    value: dict[str, Any] = entry["value"]
    return value if entry.get("sum") == _checksum(key, value) else None


def remember(key: str, value: dict[str, Any]) -> None:
    """Store a measurement; if the file cannot be written, the next probe measures again."""
    file, entry = path(), {"value": value, "sum": _checksum(key, value)}
    with contextlib.suppress(OSError, InputError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps({**_read(), key: entry}, indent=1))


def _checksum(key: str, value: dict[str, Any]) -> str:
    """Return a checksum that detects edited or damaged entries."""
    return hashlib.sha256(json.dumps([key, value], sort_keys=True).encode()).hexdigest()[:16]


def _read() -> dict[str, Any]:
    """Return the content of the cache file; {} if there is none or it is damaged."""
    try:
        content = read_json(path(), "probe's cache")
    except InputError:
        return {}
    return content if isinstance(content, dict) else {}
