"""What was measured before: one JSON file in the user's cache folder."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def path() -> Path:
    """$XDG_CACHE_HOME/raddle/probe.json, or the one under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return folder / "raddle" / "probe.json"


def recall(key: str) -> dict[str, Any] | None:
    """What was remembered under `key`; a damaged file counts as none."""
    value = _read().get(key)
    return value if isinstance(value, dict) else None


def remember(key: str, value: dict[str, Any]) -> None:
    """Add to the file, or leave it where it cannot be written: only time is lost."""
    file = path()
    content = json.dumps({**_read(), key: value}, indent=1)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        # Written beside it and moved: whoever reads meanwhile sees the old file or the new one.
        descriptor, draft = tempfile.mkstemp(dir=file.parent, prefix="probe-", suffix=".tmp")
        with os.fdopen(descriptor, "w") as stream:
            stream.write(content)
        os.replace(draft, file)


def _read() -> dict[str, Any]:
    try:
        content = json.loads(path().read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
