"""Small models and the plain module as the oracle are those of tests/program."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("program", "graph")]
