"""Rewrites the patches of this folder for the present sources, or writes one from an edited copy.

python tests/extending/refresh.py                    every patch, where its lines have moved
python tests/extending/refresh.py operator FOLDER    operator.patch: how FOLDER/raddle differs
"""

from __future__ import annotations

import difflib
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from copies import HERE, SOURCES, Copy

CONTEXT = 2  # lines


def difference(edited: Path) -> str:
    """The patch from the sources to an edited copy of the package."""
    lines: list[str] = []
    for path in sorted((edited / "raddle").rglob("*.py")):
        name = path.relative_to(edited)
        old, before = SOURCES / name, ""
        if old.exists():
            before = old.read_text()
        source = f"a/{name}" if before else "/dev/null"
        lines += difflib.unified_diff(
            before.splitlines(True),
            path.read_text().splitlines(True),
            source,
            f"b/{name}",
            n=CONTEXT,
        )
    return "".join(lines)


def main(arguments: list[str]) -> None:
    if arguments:
        name, folder = arguments
        (HERE / f"{name}.patch").write_text(difference(Path(folder)))
        return
    for path in sorted(HERE.glob("*.patch")):
        with tempfile.TemporaryDirectory() as folder:
            copy = Copy.make(Path(folder))
            copy.patch(path.read_text())
            path.write_text(difference(copy.folder))


if __name__ == "__main__":
    main(sys.argv[1:])
