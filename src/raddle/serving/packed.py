"""The data of a page that was written, without torch: see `raddle.page.html.pack`."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

OPEN = '<script type="application/octet-stream" id="data">'
CLOSE = "</script>"


def read_page(text: str) -> dict[str, Any]:
    """The JSON; the columns of numbers behind it are left alone."""
    start = text.index(OPEN) + len(OPEN)
    block = gzip.decompress(base64.b64decode(text[start : text.index(CLOSE, start)]))
    length = int.from_bytes(block[:4], "little")
    data: dict[str, Any] = json.loads(block[4 : 4 + length])
    return data
