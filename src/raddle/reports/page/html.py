"""Assembles the page of a report in one self-contained HTML file: scripts and styles of `web/`, and data.

The data are compressed and in base64, and the scripts insert names as text nodes, so no name can become
markup. The content security policy allows only the page's own script and style, by their hashes: no other
script runs, and nothing is fetched.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing data.py would import torch
    from raddle.reports.page.data import PageData

# In this order: a script may use what earlier ones define.
SCRIPTS = (
    "basics.js", "data.js", "colours.js",
    "headline.js", "bars.js",
    "span.js", "lanes.js", "lanepaint.js", "lanedraw.js", "timeline.js", "memory.js",
    "splits.js", "blocks.js", "layers.js", "nodes.js", "network.js", "strips.js",
    "traffic.js", "search.js", "operator.js", "copying.js",
    "page.js", "start.js",
)  # fmt: skip
STYLES = ("page.css", "timeline.css", "network.css", "charts.css")
LIVE_FILES = ("live.js", "live.css")  # additional files of the page of `raddle serve`


def render_page(data: PageData) -> str:
    """Return the HTML of a report."""
    return assemble_page(pack_data(data.json_data, data.columns))


def render_live_page() -> str:
    """Return the page of `raddle serve`: without data, which it requests from its server."""
    return assemble_page(None, live=True)


def pack_data(plain: Mapping[str, Any], columns: bytes = b"") -> bytes:
    """Return the compressed data: the length of the JSON in four bytes, the JSON, the columns.

    plain: the JSON data; columns: the block of numbers that they refer to (columns.py).
    """
    text = json.dumps(plain, separators=(",", ":")).encode()
    # mtime=0: the same data always gives the same page.
    return gzip.compress(len(text).to_bytes(4, "little") + text + columns, 9, mtime=0)


def assemble_page(
    packed: bytes | None,
    *,
    scripts: Sequence[str] = SCRIPTS,
    styles: Sequence[str] = STYLES,
    live: bool = False,
) -> str:
    """Return the HTML of a page around packed data; None: the page loads its data later.

    live: add LIVE_FILES, and let the page connect to its server.
    """
    # As an index, `live` is 1 or 0: with or without the file.
    scripts, styles = (*scripts, *LIVE_FILES[:live]), (*styles, *LIVE_FILES[1 : 1 + live])
    style = "\n".join(read_web_file(name) for name in styles)
    script = (
        '"use strict";\n(() => {\n'
        + "\n".join(read_web_file(name) for name in scripts)
        + "\n})();\n"
    )
    connect = "'self'" if live else "'none'"
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "img-src data: blob:",
            f"connect-src {connect}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return Template(read_web_file("page.html")).substitute(
        policy=policy,
        style=style,
        script=script,
        data="" if packed is None else base64.b64encode(packed).decode(),
    )


def read_web_file(name: str) -> str:
    """Return the text of a file of `web/`."""
    return read_package_file("raddle.reports.page", f"web/{name}")


def read_package_file(package: str, path: str) -> str:
    """Return the text of a script or style that is installed with raddle. path: inside of the package."""
    return files(package).joinpath(path).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash by which a content security policy allows a script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
