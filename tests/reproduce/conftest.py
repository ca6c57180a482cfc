"""The browser is that of the page's tests."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "page"))
