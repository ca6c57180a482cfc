"""The page of `raddle reproduce` in a real browser: figures in words, sorted, drawn and printed."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import made_up
import pytest
from chromium import browser, open_page
from hostile_model import NAMES

from experiments.experiment import RunOptions
from raddle.reports.experiments.markdown import chart_to_table
from raddle.reports.experiments.result import (
    Chart,
    Column,
    Drawing,
    Line,
    Result,
    Section,
    Table,
    cell_text,
)
from raddle.reports.page.paper import paper_page

pytestmark = pytest.mark.xdist_group("browser")

MARKUP = "<svg onload=alert(2)></svg><b>bold</b>"
WIDE = Table(
    "Wide",
    [Column("plan"), *(Column(f"{n} devices", "simulated") for n in range(12))],
    [["a", *(1.5 * n for n in range(12))]] * 40,
)
CLOUD = Chart(
    "Predicted", "predicted, s", "measured, s",
    [Line("plans", [(3, 2), (1, 1), (0, 5), (5, 0), (2, math.nan), (100, 90)], "measured")],
    log_x=True, log_y=True,
)  # fmt: skip


def result(*sections: Section, name: str = "made-up", title: str = made_up.TITLE) -> Result:
    return Result(
        name, title, made_up.CLAIMS, made_up.DIFFERS, sections, "a machine", False, 12.34, "9.9"
    )


@pytest.fixture(scope="module")
def paper_result() -> Result:
    made = [part.make(RunOptions()) for part in made_up.PARTS]
    return result(*made, Section("More", parts=[WIDE, CLOUD]))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, paper_result: Result) -> pathlib.Path:
    page_path = tmp_path_factory.mktemp("paper") / "page.html"
    page_path.write_text(paper_page(paper_result), encoding="utf-8")
    return page_path


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with browser() as started_browser:
        yield started_browser


@pytest.fixture
def page(started: Any, path: pathlib.Path) -> Iterator[Any]:
    with open_page(started, path) as opened_page:
        yield opened_page


def body(page: Any, figure: str) -> list[list[str]]:
    """The rows that a figure's table shows."""
    rows = page.evaluate(
        """(name) => [...document.querySelector(`figure[aria-label="${name}"] tbody`).rows].map(
            (row) => [...row.cells].map((cell) => cell.textContent))""",
        figure,
    )
    assert isinstance(rows, list)
    return rows


def words(table: Table) -> list[list[str]]:
    return [
        [cell_text(*pair) for pair in zip(row, table.columns, strict=True)] for row in table.rows
    ]


@pytest.mark.parametrize("look", ["desktop light", "desktop dark", "phone light", "phone dark"])
def test_the_page_shows_the_results(
    started: Any, path: pathlib.Path, paper_result: Result, look: str
) -> None:
    size, theme = look.split()
    with open_page(started, path, size, theme) as page:
        assert page.title() == "A made-up paper · raddle"
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        head = page.locator("#headline").inner_text()
        for text in (*made_up.CLAIMS, *made_up.DIFFERS, "a machine", "12.3 s", "raddle 9.9"):
            assert text in head
        assert page.locator(".contents a").all_inner_texts() == [
            s.title for s in paper_result.sections
        ]
        assert body(page, "A step") == words(paper_result.sections[0].parts[0])
        heads = page.locator("figure[aria-label='A step'] th").all_inner_texts()
        assert [head.split("\n")[1:] for head in heads] == [[], [], ["measured"], ["printed"]]
        assert page.locator("#part-1 > p").all_inner_texts() == ["The first.", "The second."]
        assert "Skipped: there is no lab" in page.locator("#part-3").inner_text()
        assert page.locator("pre").inner_text() == "conv  n/2\nfc    c/2"
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        before = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.locator("button.theme").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_a_table_is_sorted_by_click_and_by_keyboard(page: Any) -> None:
    first = lambda: [row[0] for row in body(page, "A step")]  # noqa: E731
    heads = page.locator("figure[aria-label='A step'] th")
    heads.nth(1).locator("button").click()  # numbers: 10 is after 2
    assert first() == ["d", "b|c", "a"]
    assert heads.nth(1).get_attribute("aria-sort") == "ascending"
    heads.nth(0).locator("button").focus()
    page.keyboard.press("Enter")
    assert first() == ["a", "b|c", "d"]
    page.keyboard.press("Enter")
    assert first() == ["d", "b|c", "a"]
    page.keyboard.press("Enter")
    assert first() == ["b|c", "a", "d"]  # as it was given
    assert heads.nth(0).get_attribute("aria-sort") is None
    for order in (["b|c", "a", "d"], ["a", "b|c", "d"]):  # what is missing is last, both ways
        heads.nth(2).locator("button").click()
        assert first() == order


def test_a_wide_table_scrolls_in_its_box(started: Any, path: pathlib.Path) -> None:
    with open_page(started, path, "phone") as page:
        box = page.locator("figure[aria-label=Wide] .scroll")
        box.evaluate("(box) => { box.scrollLeft = 1e6; box.scrollTop = 1e6; }")
        assert box.evaluate("(box) => box.scrollLeft > 0 && box.scrollTop > 0")
        assert box.locator("thead").is_visible()
        row, corner = (
            box.locator(f"{what} >> nth=-1").bounding_box()
            for what in ("tbody tr td:first-child", "th:first-child")
        )
        assert 0 <= row["x"] < 40  # which row and column it is stays in view
        assert box.bounding_box()["y"] <= corner["y"] < row["y"]


def test_a_chart_says_its_values(page: Any, paper_result: Result) -> None:
    """At every device of the first line, by keyboard and by pointer."""
    plot = page.locator("figure[aria-label=Throughput] svg[tabindex]")
    plot.focus()
    tip = page.locator(".tip")
    chart = paper_result.sections[1].parts[0]
    assert isinstance(chart, Chart)
    for n, speed in chart.lines[0].points:
        assert tip.inner_text() == f"data (simulated)\ndevices: {n}\nimages/s: {speed:.0f}"
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert tip.inner_text() == "data (printed)\ndevices: 4\nimages/s: 360"
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 16, box["y"] + 12)
    assert tip.inner_text() == "ours (measured)\ndevices: 8\nimages/s: 1200"
    page.mouse.move(0, 0)
    assert not tip.is_visible()


STROKES = """[...document.querySelectorAll("figure[aria-label=Throughput] .plot .stroke")].map(
    (path) => ({ dash: path.getAttribute("stroke-dasharray"), colour: path.getAttribute("stroke"),
                 at: path.getAttribute("d").slice(1).split("L").map((p) => p.split(" ").map(Number)) }))"""


def test_lines_are_apart_and_where_they_belong(page: Any) -> None:
    data, printed, ours = page.evaluate(STROKES)
    figure = page.locator("figure[aria-label=Throughput]")
    assert figure.locator(".plot .middle").all_text_contents() == ["1", "2", "4", "8"]
    assert figure.locator(".plot .end").all_text_contents()[::6] == ["0", "1200"]
    assert data["dash"] is None
    assert printed["dash"] is not None
    assert data["colour"] == printed["colour"] != ours["colour"]
    steps = [b[0] - a[0] for a, b in pairwise(data["at"])]  # 1, 2, 4, 8 on a logarithmic axis
    assert max(steps) - min(steps) < 0.3
    assert min(steps) > 100
    heights = [y for _, y in data["at"]]  # 100, 200, 400, 800 on a linear one
    assert heights[0] - heights[2] == pytest.approx(3 * (heights[0] - heights[1]), abs=0.5)
    figure.locator(".legend button").nth(2).click()
    left = page.evaluate(STROKES)
    assert len(left) == 2
    assert left[0]["at"][-1][1] < heights[-1]  # the axis ends at what is shown


def test_points_that_are_no_line(page: Any) -> None:
    """They go back and forth; two have no logarithm, and one is no number."""
    figure = page.locator("figure[aria-label=Predicted]")
    assert figure.locator(".plot .stroke").count() == 0
    assert figure.locator(".plot .mark").get_attribute("d").count("M") == 3
    assert "Not drawn: 2 points at or below zero" in figure.inner_text()


def test_a_chart_is_a_table_too(page: Any, paper_result: Result) -> None:
    chart = paper_result.sections[1].parts[0]
    assert isinstance(chart, Chart)
    page.locator("figure[aria-label=Throughput] summary").click()
    page.wait_for_selector("figure[aria-label=Throughput] tbody tr")
    assert body(page, "Throughput") == words(chart_to_table(chart))


def test_it_prints_every_row(page: Any) -> None:
    assert len(page.pdf()) > 20_000
    page.emulate_media(media="print")
    box = page.locator("figure[aria-label=Wide] .scroll")
    assert box.evaluate("(box) => box.scrollHeight <= box.clientHeight")


def test_the_page_has_no_data_as_text_and_fetches_nothing(paper_result: Result) -> None:
    html = paper_page(paper_result)
    assert html == paper_page(paper_result)
    assert "made-up" not in html
    assert "default-src 'none'" in html
    assert "connect-src 'none'" in html


def test_names_are_shown_as_text(started: Any, tmp_path: pathlib.Path) -> None:
    names = [MARKUP, *NAMES]
    columns = [Column(names[0]), *(Column(name, "counted") for name in names[1:])]
    rows = [names, [None, *(float(i) for i in range(len(names) - 1))]]
    lines = [Line(name, [(1, i), (2, i)], "printed") for i, name in enumerate(names)]
    sections = [
        Section(name, name, [Drawing(name, names, name)], skipped=name) for name in names
    ] + [Section("all", "", [Table(MARKUP, columns, rows), Chart(MARKUP, *names[:2], lines)])]
    path = tmp_path / "hostile.html"
    path.write_text(paper_page(result(*sections, name=NAMES[0], title=MARKUP)), encoding="utf-8")
    assert MARKUP not in path.read_text()
    with open_page(started, path, "phone") as page:
        page.locator("details summary").click()
        page.locator(".plot svg").focus()
        text = page.locator("main").inner_text()
        for name in names:
            shown = name if len(name) < 200 else name[:40]
            for mark in "\u200f\u202e\u202c":
                shown = shown.replace(mark, f"\\u{ord(mark):04x}")
            assert shown in text
        assert MARKUP in page.locator(".tip").inner_text()
        assert page.locator("img, script[src], iframe, main script, main svg[onload]").count() == 0
        assert page.locator("main b:not(.name)").count() == 0
        assert page.evaluate("typeof broken") == "undefined"
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
