"""Names of models, operators, clusters and plans are shown as text, even if they contain markup."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from chromium import browser, open_page, raddle_json
from hostile_model import NAMES

from raddle.clusters import cluster

pytestmark = pytest.mark.xdist_group("browser")

MARKUP = "<svg onload=alert(2)></svg><b>bold</b>"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A report in which the names of model file, cluster and plan contain markup."""
    folder = tmp_path_factory.mktemp("hostile")
    model = folder / f"{MARKUP.replace('/', '_')}.py"
    model.write_text((pathlib.Path(__file__).parent / "hostile_model.py").read_text())
    described = {**cluster("p100:1x2").to_dict(), "name": MARKUP}
    described["devices"] = {MARKUP: described["devices"]["p100"]}
    described["nodes"] = [{**node, "devices": [MARKUP] * 2} for node in described["nodes"]]
    (folder / "cluster.yaml").write_text(yaml.safe_dump(described))
    plan = folder / "plan.json"
    on = ("--cluster", str(folder / "cluster.yaml"))
    raddle_json("plan", f"{model}:build", *on, "--method", "owt", "-o", str(plan))
    written = json.loads(plan.read_text())
    plan.write_text(json.dumps({**written, "method": f"{MARKUP} ../../etc {NAMES[3]}"}))
    page = folder / "page.html"
    raddle_json("report", "--plan", str(plan), "-o", str(page))
    assert MARKUP not in page.read_text()
    return page


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with browser() as chromium:
        yield chromium


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_names_are_shown_as_text(started: Any, path: pathlib.Path, size: str) -> None:
    with open_page(started, path, size) as page:
        ops = page.evaluate("raddle.data.network.ops.map((op) => op.name)")
        for number in range(len(page.evaluate("raddle.data.methods"))):
            page.evaluate(f"raddle.select({number})")
            assert MARKUP in page.locator("#headline").inner_text()
            for name in NAMES:
                page.evaluate(f"raddle.op = -1; raddle.choose({ops.index(name)})")
                shown = page.locator("#operator .body").inner_text()
                assert expected(name) in shown
        assert page.locator("img, script[src], iframe, object, main b:not(.name)").count() == 0
        assert page.evaluate("typeof broken") == "undefined"
        assert page.locator("main script, main svg[onload]").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def expected(name: str) -> str:
    """Return a name as the page shows it: direction marks are escaped, and long names are cut."""
    for mark in "\u200f\u202e\u202c":
        name = name.replace(mark, f"\\u{ord(mark):04x}")
    return name if len(name) <= 200 else name[:80]


def test_no_other_script_would_run(started: Any, path: pathlib.Path) -> None:
    """Even if markup came into the page, its content security policy would stop it."""
    with open_page(started, path, allowed="Content Security Policy") as page:
        page.evaluate(
            """() => {
                window.refused = 0;
                document.addEventListener("securitypolicyviolation", () => (window.refused += 1));
                const script = document.createElement("script");
                script.textContent = "window.broken = 1";
                document.body.append(script);
                const image = document.createElement("div");
                image.innerHTML = "<img src=x onerror='window.broken = 2'>";
                document.body.append(image);
            }"""
        )
        page.wait_for_function("refused >= 2")  # the script, and what the image would have done
        assert page.evaluate("typeof broken") == "undefined"
