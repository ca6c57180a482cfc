"""What can be chosen, and the page to choose it on: asked of a child, which imports torch in its place.

`python -m raddle.reports.server.offer` prints it as JSON.
"""

from __future__ import annotations

import json
from threading import Thread
from typing import Any

from raddle.errors import InputError
from raddle.reports.server.children import Children, sentence


class Offer:
    """A child makes it while the server starts; who asks first waits for it."""

    def __init__(self, children: Children) -> None:
        self._found: dict[str, Any] = {}
        self._error = ""
        self._children = children
        self._thread = Thread(target=self._ask, daemon=True)
        self._thread.start()

    def get(self) -> dict[str, Any]:
        """models, clusters, methods, searches, page."""
        self._thread.join()
        if self._error:
            raise InputError(self._error)
        return self._found

    def _ask(self) -> None:
        try:
            child = self._children.start("raddle.reports.server.offer")
            out, err = child.communicate()
            self._children.done(child)
            if child.returncode == 0:
                self._found = json.loads(out)
            else:
                why = sentence(child.returncode, err.splitlines())
                self._error = f"what can be chosen is not known, {why}"
        except (InputError, OSError) as error:
            self._error = str(error)


def offered() -> dict[str, Any]:
    from raddle import clusters, zoo
    from raddle.cli.planning import COMPARE_BUDGET
    from raddle.reports.page.html import live_page
    from raddle.searches.baselines import METHODS
    from raddle.searches.planning import SEARCHES

    return {
        "models": zoo.names(),
        "clusters": [_spec(preset) for preset in clusters.presets()],
        "methods": [*METHODS],
        "searches": [*SEARCHES],
        "budget": COMPARE_BUDGET,
        "page": live_page(),
    }


def _spec(preset: dict[str, Any]) -> str:
    """{"name": "p100", "nodes": 4, "devices_per_node": 4} -> "p100:4x4"."""
    nodes, each = preset["nodes"], preset["devices_per_node"]
    return f"{preset['name']}:{each}" if nodes == 1 else f"{preset['name']}:{nodes}x{each}"


if __name__ == "__main__":
    print(json.dumps(offered()))
