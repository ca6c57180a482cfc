"""The plain module as the oracle, modules without dropout and pipelines are shared with other tests."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("program", "graph", "run")]
