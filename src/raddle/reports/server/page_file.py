"""Reads the data that `raddle.reports.page.html.pack_data` packed into a page's HTML, without torch."""

from __future__ import annotations

import base64
import gzip
import io
import zlib
from typing import Any

from raddle.errors import InputError, quote
from raddle.files import MAX_BYTES, Path, parse_json, read_text

OPEN = '<script type="application/octet-stream" id="data">'
CLOSE = "</script>"


def read_page(path: Path) -> dict[str, Any]:
    """Return the JSON data of a page; the columns (long lists of numbers) after it are not read."""
    text = read_text(path, "page of raddle")
    try:
        start = text.index(OPEN) + len(OPEN)
        packed = base64.b64decode(text[start : text.index(CLOSE, start)])
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as block:
            length = int.from_bytes(block.read(4), "little")
            data = parse_json(block.read(min(length, MAX_BYTES)))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"{quote(path)} is no page of raddle: {error}.") from None
    if not isinstance(data, dict) or not isinstance(data.get("methods"), list):
        raise InputError(f"{quote(path)} is no page of raddle: it has no methods.")
    return data
