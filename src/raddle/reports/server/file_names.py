"""Makes names of report files with safe characters and a limited length from any text of a user.

The server (`raddle serve`) stores reports under these names.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import PurePath

MAX_PART = 40  # characters of a model, a cluster or a method in a name
REPORT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,139}")


def is_name(text: object) -> bool:
    """Return whether a text is a valid report name: no folder in it, no hidden file."""
    return isinstance(text, str) and REPORT_NAME.fullmatch(text) is not None


def safe_name(text: str) -> str:
    """Replace unsafe characters and shorten: "auto (2)" -> "auto-2"."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:MAX_PART].strip("-._")
    return cleaned or "x"


def report_name(model: str, cluster: str, batch: int | None, when: datetime) -> str:
    """Return the name of a report: model, cluster, batch and time.

    ("nets/mine.py:net", "p100:4x4", 64) -> "mine.py-net-p100-4x4-b64-20250131-101500".
    """
    parts = [safe_name(PurePath(text).name) for text in (model, cluster)]
    if batch is not None:
        parts.append(f"b{batch}")
    return "-".join([*parts, when.strftime("%Y%m%d-%H%M%S")])
