"""The example notebook runs, and its objects are shown as IPython shows them: as HTML, else as text."""

from __future__ import annotations

import ast
import json
import pathlib
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from typing import Any

import pytest

import raddle
from raddle.reports.notebook import comparison_html, timeline_html
from raddle.reports.notebook.lanes import LEFT, MAX_LANES, WIDTH, draw_lanes

NOTEBOOK = pathlib.Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def display(value: Any) -> tuple[str, str]:
    """The type and the content of what IPython shows: it asks for a canary, then for `_repr_html_`."""
    if getattr(value, "_ipython_canary_method_should_not_exist_", None) is None:
        method = getattr(value, "_repr_html_", None)
        if callable(method) and (html := method()) is not None:
            return "text/html", html
    return "text/plain", repr(value)


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Executes a cell and returns the value of its last line, if that is an expression."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.fixture(scope="module")
def shown() -> list[tuple[Any, str, str]]:
    """The values of the notebook's cells, and how they are shown."""
    notebook, names = json.loads(NOTEBOOK.read_text()), dict[str, Any]()
    assert all(not cell.get("outputs") for cell in notebook["cells"])
    sources = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    values = [run_cell(source, names) for source in sources]
    return [(value, *display(value)) for value in values if value is not None]


def test_the_notebook_shows_pictures(shown: list[tuple[Any, str, str]]) -> None:
    kinds = [(type(value).__name__, kind) for value, kind, _ in shown]
    assert kinds == [
        ("Comparison", "text/html"),
        ("PlanResult", "text/html"),
        ("Explanation", "text/plain"),
        ("DrawnTimeline", "text/html"),
    ]


class Tags(HTMLParser):
    """Checks that every element is closed in order, and collects tags and attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open, self.seen, self.attributes = [], set[str](), set[str]()
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_pictures_are_whole_and_fetch_nothing(shown: list[tuple[Any, str, str]]) -> None:
    for _, kind, html in shown:
        if kind == "text/html":
            tags = Tags(html)
            assert "script" not in tags.seen
            assert not {"src", "href", "onclick", "onload"} & tags.attributes
            assert "url(" not in html
            assert "@import" not in html
            assert html.count("--forward: #") == 2  # the colours of both themes


def test_the_lanes_show_how_long_a_device_computes(shown: list[tuple[Any, str, str]]) -> None:
    timeline = shown[-1][0]
    svg, kinds, hidden = draw_lanes(timeline)
    root = ElementTree.fromstring(svg)
    names = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    shares = [
        sum(share.values()) and share["compute"] / sum(share.values())
        for share in timeline.breakdown()
    ]
    assert names == [t for d, s in enumerate(shares) for t in (f"device {d}", f"{s:.0%}")]
    assert (kinds[:2], hidden) == (["forward", "backward"], 0)
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        for piece in path.attrib["d"].split("M")[1:]:
            left, width = float(piece.split()[0]), float(piece.split("h")[1].split("v")[0])
            assert left >= LEFT
            assert 0 < width <= LEFT + WIDTH - left


def test_many_devices_are_counted_not_drawn() -> None:
    result = raddle.plan("mlp-tiny", 64, cluster="p100:8x8", method="data")
    assert draw_lanes(result.timeline).hidden == 64 - MAX_LANES
    assert "and 32 more devices" in timeline_html(result.timeline)


def test_names_cannot_become_markup() -> None:
    comparison = raddle.compare("mlp-tiny", 8, cluster="p100:4x4", methods=["data", "model"])
    rows = [{**row, "method": "<b>x</b>", "error": "<i>"} for row in comparison.rows]
    html = comparison_html("<u>title</u>", rows)
    assert "&lt;u&gt;title" in html
    assert not {"u", "i"} & Tags(html).seen
    assert html.count("<b ") == sum(row["step_ms"] is not None for row in rows)
