"""Small models are shared with the tests of programs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "program"))
