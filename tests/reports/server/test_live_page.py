"""The live page in a browser: choose, start, wait, see the report."""

from urllib.parse import urlsplit

import pytest
from chromium import browser
from timeouts import HANG

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def page(served):
    """A page that records errors, and requests to other servers."""
    with browser() as started:
        opened = started.new_page(viewport={"width": 375, "height": 812})
        opened.set_default_timeout(1000 * HANG)
        opened.wrong = []
        opened.on("pageerror", lambda error: opened.wrong.append(str(error)))
        opened.on(
            "console",
            lambda message: message.type == "error" and opened.wrong.append(message.text),
        )
        opened.on(
            "request",
            lambda request: (
                urlsplit(request.url).scheme in ("data", "blob")
                or request.url.startswith(served.url)
                or opened.wrong.append(request.url)
            ),
        )
        opened.goto(served.address)
        yield opened


def test_a_report_is_chosen_started_shown_and_deleted(served, page):
    page.fill("[name=model]", "lenet")
    page.fill("[name=cluster]", "local:2")
    for box in page.query_selector_all("[name=method]"):
        box.set_checked(box.get_attribute("value") in ("data", "owt"))
    page.keyboard.press("Tab")
    page.locator("[name=model]").press("Enter")  # no mouse is needed
    page.wait_for_selector(".job:not([hidden]) progress")
    page.wait_for_selector("html[data-ready=yes]")
    assert "done in" in page.text_content(".job h2")
    assert page.input_value("[name=model]") == "lenet"
    assert page.evaluate("window.raddle.data.model") == "lenet"
    name = page.get_attribute(".kept li", "data-report")
    assert served.folder.joinpath(f"{name}.html").exists()
    width = page.evaluate("document.getElementById('live').scrollWidth")
    assert width <= 375
    assert page.url == f"{served.url}/#{name}"

    page.goto("about:blank")
    page.goto(f"{served.url}/#{name}")  # as from a bookmark
    page.wait_for_selector("html[data-ready=yes]")
    page.click(".kept .show")
    with page.expect_popup() as popup:
        page.click(".kept a")
    popup.value.wait_for_selector("html[data-ready=yes]")  # in a sandbox, outside the live page
    popup.value.close()
    page.click(".kept li button.plain")
    assert page.text_content(".kept li button.plain") == "Really?"
    page.click(".kept li button.plain")
    page.wait_for_selector(".kept li", state="detached")
    assert list(served.folder.iterdir()) == []
    assert page.wrong == []


def test_bad_input_is_a_sentence_and_nothing_is_lost(page):
    page.fill("[name=model]", "lenet")
    page.fill("[name=cluster]", "local:2")
    page.fill("[name=batch]", "many")
    page.click("text=Start")
    page.wait_for_selector(".said:has-text(\"The batch is 'many'\")")
    assert page.input_value("[name=batch]") == "many"
