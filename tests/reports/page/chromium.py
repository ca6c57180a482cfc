"""Opens pages in headless Chromium; a test fails if the page logs an error or fetches anything."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from timeouts import HANG

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-quic",
]  # fmt: skip
SIZES = {"desktop": (1280, 900), "phone": (375, 812)}


def require_chromium() -> None:
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("there is no chromium to look at the page with: .ci/run installs it")
        pytest.skip("there is no chromium on this machine (Debian's package chromium)")


@contextmanager
def browser() -> Iterator[Any]:
    require_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=FLAGS, timeout=1000 * HANG
        )
        yield started
        started.close()


@contextmanager
def open_page(
    started: Any,
    path: pathlib.Path,
    size: str = "desktop",
    theme: str = "light",
    allowed: str | None = None,
) -> Iterator[Any]:
    """Open a page from disk and wait until it is ready. Anything that it logs or fetches fails the test,
    except messages that contain `allowed`."""
    width, height = SIZES[size]
    context = started.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, has_touch=size == "phone"
    )
    context.set_default_timeout(1000 * HANG)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error.stack or error}"))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on(
        "request", lambda request: _local(request.url) or wrong.append(f"fetched {request.url}")
    )
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    yield page
    context.close()
    wrong = [what for what in wrong if allowed is None or allowed not in what]
    assert not wrong, "\n".join(wrong)


def _local(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:"))


def raddle_json(*arguments: str) -> Any:
    """Run `raddle ARGUMENTS --json` in a process, and return its output."""
    command = [sys.executable, "-m", "raddle", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
