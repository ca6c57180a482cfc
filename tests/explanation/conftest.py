"""The plain module as the oracle, and modules without dropout, are shared with other tests."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("program", "graph")]
