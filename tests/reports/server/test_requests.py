"""Which requests the server accepts; all others are refused before anything is done."""

import json
from datetime import datetime

import pytest

from raddle.reports.server.file_names import is_name, report_name, safe_name

REPORT = "lenet-local-2"


@pytest.fixture(scope="module")
def shelf(served):
    """A server with one report in its folder, and other files that it must not serve."""
    served.folder.joinpath(f"{REPORT}.html").write_text("<p>kept</p>")
    row = {"label": "data", "step_ms": 1.0, "speedup": 1.0}
    summary = {"model": "m", "cluster": "c", "batch": 1, "best": "data", "methods": [row]}
    served.folder.joinpath(f"{REPORT}.json").write_text(json.dumps(summary))
    served.folder.joinpath("half.html").write_text("not known: it has no figures")
    served.folder.joinpath("broken.html").write_text("")
    served.folder.joinpath("broken.json").write_text("[")
    outside = served.folder.parent / "outside.html"
    outside.write_text("secret")
    served.folder.joinpath("link.html").symlink_to(outside)
    served.folder.joinpath("link.json").write_text(json.dumps(summary))
    return served


def test_known_reports_are_listed_and_served(shelf):
    assert [report["name"] for report in shelf.get("/api/reports")["reports"]] == [REPORT]
    status, headers, body = shelf.send_request("GET", f"/reports/{REPORT}.html")
    assert (status, body) == (200, b"<p>kept</p>")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize(
    "path",
    [
        "/reports/../outside.html",
        "/reports/..%2foutside.html",
        "/reports/%2e%2e/outside.html",
        "/../outside.html",
        "/reports//etc/passwd",
        "/reports/half.html",
        "/reports/link.html",
        f"/reports/{REPORT}",
        f"/reports/{REPORT}.json",
        f"/reports/{REPORT}.html?x",
        f"/reports/./{REPORT}.html",
        "/favicon.ico",
        "/api/start",
    ],
)
def test_nothing_else_is_served(shelf, path):
    status, headers, _ = shelf.send_request("GET", path)
    assert (status, headers["X-Content-Type-Options"]) == (404, "nosniff")


@pytest.mark.parametrize("name", ["../outside", "..", "", "link", "half", "a/b", None, [REPORT]])
def test_only_known_reports_are_deleted_or_explained(shelf, name):
    before = sorted(shelf.folder.parent.rglob("*"))
    for path in ("/api/delete", "/api/explain"):
        status, answer = shelf.post(path, {"report": name, "method": "data", "op": "x"})
        assert (status, answer["error"][:9]) == (400, "no report")
    assert sorted(shelf.folder.parent.rglob("*")) == before


def test_only_kept_plans_are_explained(shelf):
    asked = {"report": REPORT, "method": "../../outside", "op": "x"}
    status, answer = shelf.post("/api/explain", asked)
    assert (status, answer["error"][:10]) == (400, "no plan of")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost", ""])
def test_a_foreign_host_is_refused(shelf, host):
    for path in ("/", "/api/offer", f"/reports/{REPORT}.html"):
        status, _, body = shelf.send_request("GET", path, headers={"Host": host})
        assert status == 403
        assert shelf.key.encode() not in body


def test_other_sites_are_refused(shelf):
    assert (
        shelf.send_request("GET", "/", headers={"Sec-Fetch-Site": "cross-site"})[0] == 200
    )  # a link
    for site in ("cross-site", "same-site"):
        assert shelf.send_request("GET", "/api/offer", headers={"Sec-Fetch-Site": site})[0] == 403
    for origin in ("http://evil.example", "null", "https://localhost"):
        assert shelf.post("/api/cancel", {}, Origin=origin)[0] == 403
    assert shelf.post("/api/cancel", {}, Origin=f"http://localhost:{shelf.port}")[0] == 400


def test_a_change_needs_the_key_and_json(shelf):
    for path in ("/", "/api/offer", "/api/state"):  # no response contains the key
        assert shelf.key.encode() not in shelf.send_request("GET", path)[2]
    assert shelf.post("/api/cancel", {}, X_Raddle_Key="")[0] == 403
    assert shelf.post("/api/cancel", {}, X_Raddle_Key="ü")[0] == 403
    body, kind = b'{"report": "x"}', {"Content-Type": "application/json"}
    assert shelf.send_request("POST", "/api/delete", body, kind)[0] == 403
    assert shelf.post("/api/cancel", {}, Content_Type="text/plain")[0] == 415
    assert shelf.post("/api/cancel", {}, Content_Type="application/x-www-form-urlencoded")[0] == 415
    assert shelf.post("/api/cancel", [])[0] == 400
    assert shelf.post("/api/nothing", {})[0] == 404
    assert shelf.send_request("PUT", "/api/cancel", b"{}")[0] == 501
    assert shelf.get("/api/state") == {"job": None}


def test_a_body_has_a_length_and_is_small(shelf):
    status, answer = shelf.post("/api/start", {"model": "a" * 20_000})
    assert (status, answer["error"][:12]) == (413, "the body has")
    for length in ("x", "-1", ""):
        assert shelf.post("/api/cancel", {}, Content_Length=length)[0] == 411
    assert shelf.post("/api/cancel", {}, Transfer_Encoding="chunked")[0] == 411


def test_numbers_have_bounds(shelf):
    for number in (10**400, float("nan"), float("inf")):
        status, answer = shelf.start(budget=number)
        assert (status, answer["error"][:20]) == (400, "the body is no JSON:")
    for budget in (-1, 10**9, True, "5", None):
        status, answer = shelf.start(budget=budget)
        assert (status, answer["error"][:20]) == (400, "the time of a search")
    for batch in (0, -1, 1.5, 10**18, True, "8"):
        status, answer = shelf.start(batch=batch)
        assert (status, answer["error"][:12]) == (400, "the batch is")


def test_what_looks_like_an_option_is_none(shelf):
    """A model named --help is taken as a name, not as an option."""
    assert shelf.start(model="--help", cluster="--help")[0] == 200
    job = shelf.wait_until_ended()
    assert (job["state"], job["error"][:20]) == ("failed", "no cluster '--help':")


def test_names_are_safe():
    when = datetime(2025, 1, 31, 10, 15)
    name = report_name("nets/mine.py:net", "p100:4x4", 64, when)
    assert name == "mine.py-net-p100-4x4-b64-20250131-101500"
    for model in ("../..", "/etc/passwd", "a\0b", "ü" * 300, "-o", ".hidden", "x" * 1000, "con:"):
        assert is_name(report_name(model, model, 10**9, when))
    assert safe_name("auto (2)") == "auto-2"
    assert [is_name(t) for t in ("..", ".a", "a/b", "a\\b", "", "a\n", None)] == [False] * 7
