"""Collects the data of the page of `raddle serve`: the choices that the page offers, and its HTML.

`python -m raddle.api.live_page` prints the data as JSON. The server runs this in a child process.
"""

from __future__ import annotations

import json
from typing import Any

from raddle.api.clusters import presets
from raddle.api.defaults import COMPARE_SECONDS
from raddle.api.models import zoo_names
from raddle.api.planning import BASELINES, SEARCHES
from raddle.reports.page.html import render_live_page

__all__ = ["live_page_data"]


def live_page_data() -> dict[str, Any]:
    """Return names of models, clusters and methods, the default budget in seconds, and the page's HTML."""
    return {
        "models": zoo_names(),
        "clusters": [_spec(preset) for preset in presets()],
        "methods": [*BASELINES],  # the methods that follow a rule, without a search
        "searches": [*SEARCHES],  # the methods that search
        "budget": COMPARE_SECONDS,
        "page": render_live_page(),
    }


def _spec(preset: dict[str, Any]) -> str:
    """Return a preset's text for --cluster.

    Example: {"name": "p100", "nodes": 4, "devices_per_node": 4} gives "p100:4x4".
    """
    nodes, each = preset["nodes"], preset["devices_per_node"]
    return f"{preset['name']}:{each}" if nodes == 1 else f"{preset['name']}:{nodes}x{each}"


if __name__ == "__main__":
    print(json.dumps(live_page_data()))
