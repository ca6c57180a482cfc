"""Importing raddle is fast, and the code that runs on a node needs only torch and the standard library."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
PACKAGES = (
    "graph",
    "plans",
    "program",
    "runtime",
    "sync",
    "transport",
    "zoo",
)  # all that a rank needs to run a plan
RUNTIME_FILES = [
    SRC / "raddle/errors.py",
    SRC / "raddle/files.py",
    *sorted(path for name in PACKAGES for path in (SRC / "raddle" / name).rglob("*.py")),
]


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a new Python interpreter; tests look at what it prints."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def imported_packages(script: str) -> set[str]:
    """The packages outside of the standard library that a script imports.

    They determine the time of a start, which `bench/start` measures.
    """
    print_modules = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    )
    names = {
        name.partition(".")[0] for name in run_python("-c", print_modules + script).stderr.split()
    }
    return names - sys.stdlib_module_names


def test_importing_raddle_imports_no_other_package():
    assert imported_packages("import raddle") - imported_packages("") == {"raddle"}


def test_help_imports_what_reads_a_command_line_alone():
    """Not torch, numpy or numba, which take seconds, and nothing else that is not needed."""
    script = "sys.argv = ['raddle', '--help']; from raddle.cli.main import main; main()"
    needed = {"raddle", "typer"}
    with_it = {
        "shellingham",
        "annotated_doc",
        "click",
        "rich",
    }  # imported by some versions of typer
    assert needed <= imported_packages(script) - imported_packages("") <= needed | with_it


def test_public_names_are_all_there():
    import raddle

    assert set(raddle.__all__) <= set(dir(raddle))
    for name in raddle.__all__:
        assert getattr(raddle, name) is getattr(raddle, name)
    with pytest.raises(AttributeError, match="'raddle' has no attribute 'loom'"):
        raddle.loom  # noqa: B018


@pytest.mark.parametrize("path", RUNTIME_FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_runtime_imports_torch_and_the_standard_library_alone(path):
    foreign = [name for name in imports(path) if not allowed(name)]
    assert foreign == []


def test_a_rank_needs_no_solver() -> None:
    """Lowering, checking and running import neither numpy-based packages nor the simulator."""
    script = (
        "import sys, raddle.program.lower, raddle.program.checks.check; "
        "import raddle.runtime.threads, raddle.runtime.session; "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('numba', 'yaml', 'rich', 'typer') "
        "or m.startswith(('raddle.clusters', 'raddle.costs', 'raddle.simulation'))))"
    )
    assert run_python("-c", script).stdout.strip() == "[]"


def allowed(name: str) -> bool:
    parts = name.split(".")
    if parts[0] == "raddle":
        return parts[1] in {*PACKAGES, "errors", "files"}
    return parts[0] == "torch" or parts[0] in sys.stdlib_module_names


def imports(path: Path) -> Iterator[str]:
    """The name of every module that a file imports, anywhere in the file."""
    package = ".".join(path.relative_to(SRC).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            # `from raddle import zoo` imports raddle.zoo
            yield from (f"{module}.{alias.name}" for alias in node.names)
