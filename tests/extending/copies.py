"""A copy of the sources to which a patch is applied, with mypy and the command line run on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from timeouts import LONG_HANG

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src"
CALL = "from raddle.cli.main import main; main()"
# Imports every module that declares or collects schedules, sync kinds, searches, messages and so on.
EVERYTHING = "import raddle, raddle.api.planning, raddle.program.lower, raddle.searches.registry"


@dataclass(frozen=True)
class Copy:
    """A folder with a copy of the package `raddle`, and the cache of mypy."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Copy:
        shutil.copytree(
            SOURCES / "raddle", folder / "raddle", ignore=shutil.ignore_patterns("__pycache__")
        )
        return cls(folder)

    def patch(self, text: str, *, reverse: bool = False) -> None:
        """Applies a patch, or takes it back. Its lines may have moved since it was written."""
        done = subprocess.run(
            ["git", "apply", "-C1", *(["-R"] if reverse else []), "-"], cwd=self.folder, input=text,
            text=True, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (
            f"python tests/extending/refresh.py?\n{done.stdout}{done.stderr}"
        )

    def python(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "MYPYPATH": str(self.folder)}
        return subprocess.run(
            [sys.executable, *map(str, arguments)], cwd=self.folder, env=environment, text=True,
            capture_output=True, timeout=LONG_HANG, check=False,
        )  # fmt: skip

    def raddle(self, *arguments: object) -> str:
        """What `raddle VERB ...` prints. It must succeed."""
        done = self.python("-c", CALL, *arguments)
        assert done.returncode == 0, f"raddle {arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def wrong_types(self) -> str:
        """The errors of mypy; "" if there are none."""
        done = self.python(
            "-m", "mypy", "--strict", "--cache-dir", self.folder / ".mypy", "-p", "raddle"
        )
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def wrong_imports(self) -> str:
        """The error when all modules are imported; "" if there is none."""
        return self.python("-c", EVERYTHING).stderr


def files_of(patch: str) -> list[str]:
    """The files that a patch touches."""
    return re.findall(r"^\+\+\+ b/raddle/(\S+)", patch, re.MULTILINE)


def without_each(patch: str) -> list[str]:
    """For each hunk of a patch, the patch without this hunk."""
    hunks: list[tuple[str, str]] = []  # the file's two lines, and the hunk
    for file_patch in re.split(r"^(?=--- )", patch, flags=re.MULTILINE)[1:]:
        head, *changes = re.split(r"^(?=@@ )", file_patch, flags=re.MULTILINE)
        hunks += [(head, change) for change in changes]
    return ["".join(_joined(hunks[:i] + hunks[i + 1 :])) for i in range(len(hunks))]


def _joined(hunks: list[tuple[str, str]]) -> list[str]:
    lines, last = [], ""
    for head, change in hunks:
        lines += [change] if head == last else [head, change]
        last = head
    return lines
