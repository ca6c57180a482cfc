"""Only one module of the package opens files, and only one turns text into code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "raddle"

# Calls that read, write or run something, by the last two parts of the dotted name that is called.
OPEN_CALLS = {"open", "os.open", "io.open", "gzip.open", "os.fdopen"}
PATH_METHODS = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}  # methods of paths
PARSE_CALLS = {
    "json.load", "json.loads", "yaml.load", "yaml.safe_load", "torch.load", "torch.save", "pickle.load",
    "pickle.loads", "pickle.dump", "np.load", "np.save", "np.loadtxt", "np.savetxt", "os.replace",
    "os.rename",
}  # fmt: skip
RUN_CALLS = {"exec", "eval", "compile", "__import__"}

# Files that may contain such calls, with the reason.
ALLOWED = {
    "files.py": "this is the place",
    "yaml_files.py": "and this for YAML: yaml.load of a text, with a loader that has limits",
    "reports/page/html.py": "scripts and styles of the package itself",
    "clusters/catalogue.py": "/sys: the memory of a container",
    "probe/cpu_load.py": "/proc/stat",
    "probe/launch.py": "the stderr and stdout of children, in a folder of their own",
    "probe/rank.py": "the arguments that its parent gave",
    "probe/gpu.py": "the arguments that its parent gave",
    "lab/commands.py": "what `ip` prints",
    "lab/launch.py": "/proc: whose process it is",
    "experiments/counters.py": "a line a sample while it runs, in a folder of its own; /sys",
    "experiments/experiment.py": "/proc/cpuinfo",
    "runtime/clocks.py": "/proc: the machine's boot",
    "transport/exchange.py": "objects between ranks, in memory",
    "transport/memory_in_use.py": "/proc: the memory of this process",
    "transport/orphans.py": "/proc: whether a process has ended",
    "runtime/session.py": "a copy of its own stdout",
    "transport/failure_channel.py": "lines between ranks",
    "transport/shared_memory.py": "/proc: files of other ranks on this machine",
    "runtime/function_writer.py": "the code of a segment",
    "reports/server/child_processes.py": "what a child printed",
    "reports/server/report_job.py": "what a child printed",
    "reports/server/choices.py": "what a child printed",
    "verification/rank.py": "tensors of its parent, in a folder of their own",
    "verification/launch.py": "tensors for its ranks, by `replace_atomically`, and what they print",
}  # fmt: skip


@cache
def calls_by_file() -> dict[str, list[tuple[int, str]]]:
    paths = {str(path.relative_to(SRC)): path for path in sorted(SRC.rglob("*.py"))}
    paths |= {str(p.relative_to(ROOT)): p for p in sorted((ROOT / "experiments").rglob("*.py"))}
    return {name: list(calls(path)) for name, path in paths.items()}


def calls(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the name of each call that opens, parses or runs something."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        words = ast.unparse(node.func).split(".")
        name, two = words[-1], ".".join(words[-2:])
        if len(words) == 1 and name in OPEN_CALLS | RUN_CALLS:
            yield node.lineno, name
        elif two in OPEN_CALLS | PARSE_CALLS:
            yield node.lineno, two
        elif len(words) > 1 and name in PATH_METHODS and _is_path(node, name):
            yield node.lineno, f".{name}"


def _is_path(call: ast.Call, name: str) -> bool:
    """Whether a method may be that of a path: the `open` of other objects takes no mode."""
    if name != "open":
        return True
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in given)


def test_files_are_opened_in_one_module() -> None:
    assert {
        name: file_calls
        for name, file_calls in calls_by_file().items()
        if file_calls and name not in ALLOWED
    } == {}
    assert [
        name for name in ALLOWED if not calls_by_file().get(name)
    ] == []  # an entry without calls must be removed


def test_code_is_made_in_one_module() -> None:
    running = [
        name
        for name, file_calls in calls_by_file().items()
        if any(call in RUN_CALLS for _, call in file_calls)
    ]
    assert running == ["runtime/function_writer.py"]
