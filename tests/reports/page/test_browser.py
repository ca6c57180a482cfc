"""The page in a real browser shows the values of `--json`, in both themes, on a desktop and on a phone."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from chromium import browser, open_page, raddle_json

from raddle.reports.units import bytes_text, seconds_text

pytestmark = pytest.mark.xdist_group("browser")  # all tests share one browser and one report


class Report(NamedTuple):
    path: pathlib.Path
    result: dict[str, Any]


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = tmp_path_factory.mktemp("page") / "vgg.html"
    said = raddle_json(
        "report", "vgg16-tiny", "--cluster", "p100:2x2", "--batch", "64", "--budget", "1",
        "--alternatives", "3", "-o", str(path),
    )  # fmt: skip
    return Report(path, said)


@pytest.fixture(params=["desktop light", "desktop dark", "phone light", "phone dark"])
def page(request: pytest.FixtureRequest, started: Any, report: Report) -> Iterator[Any]:
    size, theme = request.param.split()
    with open_page(started, report.path, size, theme) as opened_page:
        assert opened_page.evaluate("document.documentElement.dataset.theme") == theme
        yield opened_page


def text(page: Any, selector: str) -> str:
    return str(page.locator(selector).first.inner_text())


def ms(value: float) -> str:
    return seconds_text(value / 1e3).replace(" us", " µs")


def number_of(report: Report, label: str) -> int:
    return [row["label"] for row in report.result["methods"]].index(label)


def planned(report: Report) -> list[tuple[int, dict[str, Any]]]:
    """The methods that have a plan, with their numbers; the others cannot be applied to the model."""
    return [(n, row) for n, row in enumerate(report.result["methods"]) if not row["error"]]


def shown(page: Any) -> str:
    return str(page.evaluate("raddle.method.label"))


def test_it_opens_on_the_best(page: Any, report: Report) -> None:
    assert shown(page) == report.result["best"]
    row = report.result["methods"][number_of(report, report.result["best"])]
    facts = text(page, ".facts")
    assert f"{ms(row['step_ms'])} a step" in facts
    assert f"{bytes_text(row['comm_bytes'])} sent a step" in facts
    assert row["sentences"][0] in text(page, ".why")
    assert page.title() == "vgg16-tiny on p100:2x2 · raddle"


def test_every_method_with_a_plan_can_be_shown(page: Any, report: Report) -> None:
    for number, row in planned(report):
        bar = page.locator(f".bar[data-number='{number}']")
        assert ms(row["step_ms"]) in bar.inner_text()
        bar.click()
        assert shown(page) == row["label"]
        assert f"{ms(row['step_ms'])} a step" in text(page, ".facts")
        assert bytes_text(row["peak_bytes"]) in text(page, ".facts")
        assert row["sentences"][0] in text(page, ".why")
        assert page.locator(".bar[aria-checked=true]").get_attribute("data-number") == str(number)


def test_a_method_that_cannot_be_applied_says_why(page: Any, report: Report) -> None:
    """A click on it shows nothing else: it has no plan."""
    refused = [(n, row) for n, row in enumerate(report.result["methods"]) if row["error"]]
    assert {row["label"] for _, row in refused} == {"megatron", "context", "3d"}  # no transformer
    before = shown(page)
    for number, row in refused:
        bar = page.locator(f".bar[data-number='{number}']")
        bar.click(force=True)  # it is marked as disabled
        assert shown(page) == before
        assert bar.get_attribute("aria-label").endswith(row["error"])


def test_methods_by_keyboard(page: Any) -> None:
    page.locator(".bar[aria-checked=true]").focus()
    before = shown(page)
    page.keyboard.press("ArrowDown")
    assert shown(page) != before
    assert page.evaluate("document.activeElement.getAttribute('aria-checked')") == "true"
    page.keyboard.press("ArrowUp")
    assert shown(page) == before


def test_nothing_is_wider_than_the_screen(page: Any, report: Report) -> None:
    for number in range(len(report.result["methods"])):
        page.evaluate(f"raddle.select({number})")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_theme_can_be_changed(page: Any) -> None:
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("button.theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def state(page: Any) -> dict[str, Any]:
    timeline_state = page.evaluate("document.getElementById('timeline').timelineState()")
    assert isinstance(timeline_state, dict)
    return timeline_state


def test_the_timeline_zooms_and_pans(page: Any, report: Report) -> None:
    best = report.result["methods"][number_of(report, report.result["best"])]
    whole = state(page)
    assert (whole["from"], whole["to"]) == (0, pytest.approx(1e6 * best["step_ms"], abs=1))
    canvas = page.locator("#timeline canvas[tabindex]")
    canvas.scroll_into_view_if_needed()
    canvas.focus()
    page.keyboard.press("+")
    near = state(page)
    assert near["to"] - near["from"] < whole["to"] - whole["from"]
    page.keyboard.press("ArrowRight")
    assert state(page)["from"] > near["from"]
    page.keyboard.press("0")
    assert (state(page)["from"], state(page)["to"]) == (whole["from"], whole["to"])
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 30)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_function("document.getElementById('timeline').timelineState().from > 0")
    page.get_by_role("button", name="Show the whole step").click()
    assert state(page)["from"] == whole["from"]


def test_a_slice_tells_what_it_is_and_names_its_operator(page: Any) -> None:
    """The longest slice of the first device, hovered and clicked."""
    longest = page.evaluate(
        """() => {
            const { timeline } = raddle.method;
            const column = (name) => raddle.data.column(timeline[name]);
            const [lane, duration] = [column("lane"), column("duration")];
            const own = [...lane.keys()].filter((i) => lane[i] === 0);
            const best = own.reduce((a, b) => (duration[b] > duration[a] ? b : a));
            const title = timeline.titles[column("title")[best]];
            return { slice: best, name: title[1], op: title[3], ms: duration[best] / 1e6 };
        }"""
    )
    page.locator("#timeline canvas[tabindex]").scroll_into_view_if_needed()
    at = page.evaluate(f"document.getElementById('timeline').positionOf({longest['slice']})")
    page.mouse.move(at["x"], at["y"])
    tip = page.locator("#timeline .tip").inner_text()
    assert longest["name"] in tip
    assert ms(longest["ms"]) in tip
    page.mouse.click(at["x"], at["y"])
    assert page.evaluate("raddle.op") == longest["op"]
    assert longest["name"] in text(page, "#operator .body")


def test_memory_says_the_peak(page: Any, report: Report) -> None:
    row = report.result["methods"][number_of(report, report.result["best"])]
    assert bytes_text(row["peak_bytes"]) in text(page, "#memory")


def test_an_operator_of_the_graph_can_be_clicked(page: Any) -> None:
    node = page.locator("#network [data-op]").first
    op = int(node.get_attribute("data-op"))
    node.scroll_into_view_if_needed()
    node.click(position={"x": 12, "y": 8})
    assert page.evaluate("raddle.op") == op
    assert page.evaluate(f"raddle.data.network.ops[{op}].name") in text(page, "#operator .body")


def test_edges_of_the_graph_are_as_wide_as_their_bytes(page: Any, report: Report) -> None:
    """An edge with more bytes is at least as wide."""
    page.evaluate(f"raddle.select({number_of(report, 'spatial')})")
    edges = page.evaluate(
        """[...document.querySelectorAll("#network [data-bytes]")].map((e) =>
            [Number(e.dataset.bytes), parseFloat(getComputedStyle(e).strokeWidth)])"""
    )
    assert len(edges) > 5
    assert max(nbytes for nbytes, _ in edges) > 0
    for (few, thin), (many, wide) in pairwise(sorted(edges)):
        assert few == many or thin <= wide


def test_every_layer_has_a_strip_of_its_devices(page: Any, report: Report) -> None:
    """The method owt splits the outputs of the last layer: its strip has a colour for each device."""
    page.evaluate(f"raddle.select({number_of(report, 'owt')})")
    page.locator("#strips").scroll_into_view_if_needed()
    assert page.locator("#strips .strip-row").count() >= 16  # vgg16 has 16 layers with weights
    row = page.locator("#strips .strip-row", has_text="classifier.6")
    assert "c/4 @0-3" in row.inner_text()
    row.scroll_into_view_if_needed()
    page.wait_for_function(  # it is drawn when it comes into view
        """(canvas) => {
            if (!canvas.width || !canvas.height) return false;
            const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
            copy.drawImage(canvas, 0, 0); // one that is read again and again would be warned of
            const { data } = copy.getImageData(0, canvas.height >> 1, canvas.width, 1);
            return new Set(new Uint32Array(data.buffer)).size >= 4;
        }""",
        arg=row.locator("canvas").element_handle(),
    )


def test_bytes_between_devices(page: Any, report: Report) -> None:
    for number, row in planned(report):
        page.evaluate(f"raddle.select({number})")
        total = page.evaluate(
            "raddle.data.column(raddle.method.traffic.bytes).reduce((a, b) => a + b, 0)"
        )
        assert abs(total - row["comm_bytes"]) <= 4  # bytes of a step are rounded
        if total:
            assert bytes_text(total) in text(page, "#traffic p")


def test_an_operator_is_explained(page: Any) -> None:
    explained(page)


def test_other_splits_of_an_operator_are_a_table(started: Any, tmp_path: pathlib.Path) -> None:
    """Uses a data-parallel plan: a pipeline stage on one device has no other splits."""
    path = tmp_path / "data.html"
    raddle_json(
        "report", "lenet-tiny", "--cluster", "p100:1x2", "--batch", "8", "--methods", "data",
        "--alternatives", "3", "-o", str(path),
    )  # fmt: skip
    with open_page(started, path) as page:
        assert explained(page) > 0


def explained(page: Any) -> int:
    """Check the explanation of an operator on the page, and return the number of its other splits."""
    name = page.evaluate("raddle.data.network.ops[raddle.method.groups[0].anchor].name")
    page.locator("#operator input").fill(name)
    page.locator("#operator input").press("Enter")
    body = text(page, "#operator .body")
    assert name in body
    assert (
        page.evaluate("raddle.method.tiles.texts[raddle.method.tiles.text_of[raddle.op]]") in body
    )
    assert page.evaluate("raddle.method.groups[0].sentence") in body
    count = int(page.evaluate("raddle.method.groups[0].alternatives.length"))
    rows = page.locator("#operator .alternatives tr").count()
    assert rows == (1 + count if count else 0)
    return count


def test_a_plan_can_be_taken_along(started: Any, report: Report, tmp_path: pathlib.Path) -> None:
    with open_page(started, report.path) as page:
        take_along(page, report, tmp_path)


def take_along(page: Any, report: Report, tmp_path: pathlib.Path) -> None:
    page.evaluate(f"raddle.select({number_of(report, 'owt')})")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the plan").click()
    assert saved.value.suggested_filename == "owt.json"
    saved.value.save_as(tmp_path / "owt.json")
    simulated = raddle_json("simulate", str(tmp_path / "owt.json"))
    assert simulated["step_ms"] == report.result["methods"][number_of(report, "owt")]["step_ms"]
    page.get_by_role("button", name="Copy the torchrun line").click()
    page.wait_for_selector("button.copy:text-is('Copied')")


def test_it_prints(started: Any, report: Report) -> None:
    with open_page(started, report.path, theme="dark") as page:
        assert len(page.pdf()) > 50_000


def test_a_page_without_any_plan(started: Any, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "none.html"
    raddle_json(
        "report", "lenet", "--cluster", "p100:1x4", "--batch", "3", "--methods", "data",
        "-o", str(path),
    )  # fmt: skip
    with open_page(started, path) as page:
        assert "a batch of 3" in text(page, ".facts")
        page.locator(".node").first.click()
        assert "conv2d" in text(page, "#operator .body")
        page.locator(".bar").focus()
        page.keyboard.press("ArrowDown")
        for hidden in ("timeline", "memory", "traffic", "search", "copying"):
            assert not page.locator(f"#{hidden}").is_visible()


# Takes the slice with the longest pause after it, and zooms so that only its last 0.3 pixels are in view.
# Returns the colours that are drawn in its row, left of the end of the pause.
LAST_OF_A_SLICE = """async () => {
  const { method, data } = raddle;
  const [start, duration, lane] = ["start", "duration", "lane"].map((c) => data.column(method.timeline[c]));
  const pause = (i) => {
    const end = start[i] + duration[i];
    const next = [...start].filter((s, j) => lane[j] === lane[i] && s >= end);
    return Math.min(method.timeline.period_ns, ...next) - end;
  };
  const pauses = [...start].map((_, i) => pause(i) / duration[i]);
  const slice = pauses.indexOf(Math.max(...pauses));
  const [section, canvas] = [document.getElementById("timeline"), document.querySelector("canvas.lanes")];
  const drawn = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  canvas.scrollIntoView();
  section.querySelector(".lanes-window").scrollTop = 1e6; // links are at the end
  await drawn();
  const end = start[slice] + duration[slice];
  const y = section.positionOf(slice).y - canvas.getBoundingClientRect().top;
  const length = duration[slice] * Math.min(20, pauses[slice] / 2);
  raddle.look(end - (0.3 * length) / 1000, end + length);
  await drawn();
  const ratio = canvas.width / canvas.clientWidth;
  const pixels = canvas.getContext("2d").getImageData(160 * ratio, y * ratio, 400, 1).data;
  const colours = new Set();
  for (let x = 0; x < 400; x++) colours.add(pixels.slice(4 * x, 4 * x + 3).join());
  return [length / duration[slice], [...colours]];
}"""


def test_a_slice_that_is_out_of_view_is_not_drawn(started: Any, report: Report) -> None:
    with open_page(started, report.path) as page:
        page.evaluate(f"raddle.select({number_of(report, 'data')})")
        longer, colours = page.evaluate(LAST_OF_A_SLICE)
        assert longer > 2
        assert set(colours) <= {"255,255,255", "213,217,224"}  # paper, and the axis' lines
