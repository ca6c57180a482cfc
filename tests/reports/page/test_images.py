"""Makes the screenshots of the README; look at them after every change of the page.

RADDLE_IMAGES=docs/images pytest tests/reports/page/test_images.py      (make images)
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest
from chromium import browser, open_page, raddle_json

pytestmark = pytest.mark.xdist_group("browser")

DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("images") / "alexnet.html"
    raddle_json(
        "report", "alexnet", "--cluster", "p100:4x4", "--batch", "512", "--budget", "3",
        "--methods", "data,owt,layerwise,spatial,optcnn,auto", "--alternatives", "3", "-o", str(path),
    )  # fmt: skip
    return path


def test_pictures_of_the_page(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = pathlib.Path(os.environ.get("RADDLE_IMAGES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as started:
        for theme in ("light", "dark"):
            with open_page(started, path, theme=theme) as page:
                page.set_viewport_size({"width": 1200, "height": 1130})
                page.evaluate(DRAWN)
                picture = folder / f"page-{theme}.png"
                page.screenshot(path=picture)
                assert colours(page, picture) > 100


def colours(page: Any, picture: pathlib.Path) -> int:
    """Return the number of colours in a picture: an empty page has few."""
    import base64

    data = base64.b64encode(picture.read_bytes()).decode()
    count = page.evaluate(
        """async (data) => {
            const image = new Image();
            image.src = `data:image/png;base64,${data}`;
            await image.decode();
            const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
            canvas.drawImage(image, 0, 0);
            const { data: bytes } = canvas.getImageData(0, 0, image.width, image.height);
            return new Set(new Uint32Array(bytes.buffer)).size;
        }""",
        data,
    )
    return int(count)
