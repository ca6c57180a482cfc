"""Checks of the source tree: allowed imports, cycles, private APIs of PyTorch, sizes of files and classes.

Every check takes the folder that contains the package and returns its violations, one string each.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

MAX_LINES, MAX_METHODS, MAX_ATTRIBUTES = 400, 15, 12  # the most that a file and a class may have
# Modules at the top of raddle, which every package may import.
COMMON = ("errors", "files", "version", "yaml_files")
# The modules that may use private names of PyTorch: each says why, and has tests for every version.
ADAPTERS = ("raddle.sync.private_torch",)

# Modules whose names are public, for code outside of the package.
PUBLIC = ("raddle", "raddle.sync")


class Import(NamedTuple):
    """One import, anywhere in a module: at the top, in a function, or only for types."""

    module: str  # the module that has the import statement
    target: str  # the module that is imported
    line: int


def modules(folder: Path, package: str = "raddle") -> dict[str, Path]:
    """The path of every module of a package, by dotted name."""
    paths = {}
    for path in sorted((folder / package).rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def imports(paths: Mapping[str, Path]) -> Iterator[Import]:
    """The imports between modules; `from raddle.a import b` is raddle.a.b if that is a module."""
    tops = {name.partition(".")[0] for name in paths}
    for module, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                source = node.module or ""
                names = [f"{source}.{alias.name}" for alias in node.names]
                targets = [name if name in paths else source for name in names]
            elif isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            else:
                continue
            for target in dict.fromkeys(targets):
                if target.partition(".")[0] in tops:
                    yield Import(module, target, node.lineno)


def package_of(module: str) -> str:
    """The package of raddle that a module is in; outside of raddle, the top-level package."""
    parts = module.split(".")
    if parts[0] != "raddle":
        return parts[0]
    return parts[1] if len(parts) > 1 else "raddle"


def forbidden_imports(folder: Path, table: Mapping[str, str]) -> list[str]:
    """Imports that the table does not allow; table: package -> names of the packages it may import."""
    violations = []
    for edge in imports(modules(folder)):
        source, target = package_of(edge.module), package_of(edge.target)
        if source in ("raddle", "__main__") or target in (source, *COMMON):
            continue
        if target not in table.get(source, "").split():
            violations.append(f"{edge.module} imports {edge.target}")
    return sorted(set(violations))


def private_imports(folder: Path, root: Path, package: str = "experiments") -> list[str]:
    """Imports of raddle by an outside package that are neither public nor from `raddle.api`."""
    violations = []
    for edge in imports({**modules(folder), **modules(root, package)}):
        if package_of(edge.module) != package or package_of(edge.target) == package:
            continue
        if edge.target in PUBLIC or package_of(edge.target) in ("api", *COMMON):
            continue
        violations.append(f"{edge.module} imports {edge.target}")
    return sorted(set(violations))


def cycles(folder: Path) -> list[str]:
    """Cycles of modules that import each other."""
    graph: dict[str, list[str]] = {}
    for edge in imports(modules(folder)):
        if edge.module != edge.target:
            graph.setdefault(edge.module, []).append(edge.target)
    found_cycles, numbers, lowest, stack = [], {}, {}, []

    def visit(at: str) -> None:  # Tarjan's strongly connected components
        numbers[at] = lowest[at] = len(numbers)
        stack.append(at)
        for other in graph.get(at, ()):
            if other not in numbers:
                visit(other)
            if other in stack:
                lowest[at] = min(lowest[at], lowest[other])
        if lowest[at] == numbers[at]:
            cycle = [stack.pop()]
            while cycle[-1] != at:
                cycle.append(stack.pop())
            if len(cycle) > 1:
                found_cycles.append(" and ".join(sorted(cycle)))

    for module in list(graph):
        if module not in numbers:
            visit(module)
    return sorted(found_cycles)


def shadowed_public_names(folder: Path, names: Collection[str]) -> list[str]:
    """Modules with the name of a public object: importing such a module would replace the object."""
    existing = modules(folder)
    return sorted(f"raddle.{name}" for name in names if f"raddle.{name}" in existing)


_NAMES_SCRIPT = """
import importlib, json, random, sys
import raddle

wanted, seed, first = json.loads(sys.argv[1])
look = lambda: {name: getattr(raddle, name) for name in raddle.__all__}
before = look() if first else {}
random.Random(seed).shuffle(wanted)
for module in wanted:
    importlib.import_module(module)
after = look()
changed = [name for name in before if before[name] is not after[name]]
attribute = lambda value, key: str(getattr(value, key, ""))
what = lambda value: [type(value).__name__, attribute(value, "__module__"), attribute(value, "__name__")]
print(json.dumps({name: [*what(value), name in changed] for name, value in after.items()}))
"""


def public_names(
    folder: Path, wanted: Collection[str], *, seed: int, first: bool
) -> dict[str, Any]:
    """For each public name of raddle, after modules were imported in a random order: [type, module, name,
    whether the object changed].

    first: look the names up before the imports, too, to see whether the objects change.
    """
    request = json.dumps([sorted(wanted), seed, first])
    command = [sys.executable, "-c", _NAMES_SCRIPT, request]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env).stdout
    names: dict[str, Any] = json.loads(output.splitlines()[-1])
    return names


def private_torch(folder: Path) -> list[str]:
    """Uses of names of torch that begin with an underscore."""
    violations = []
    for module, path in modules(folder).items():
        if module in ADAPTERS:
            continue
        tree = ast.parse(path.read_text())
        torch_names = _torch_names(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [
                    p for a in node.names if a.name.startswith("torch") for p in a.name.split(".")
                ]
            elif isinstance(node, ast.Attribute):
                names = _dotted(node) if _dotted(node)[0] in torch_names else []
            else:
                continue
            private = [n for n in names if n.startswith("_") and not n.startswith("__")]
            violations += [f"{module} uses torch's {name}" for name in private]
    return sorted(set(violations))


def _torch_names(tree: ast.AST) -> set[str]:
    """The names of torch and its parts in a module, such as dist of `import torch.distributed as dist`."""
    names = {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname for a in node.names if a.name.startswith("torch") and a.asname}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names |= {a.asname or a.name for a in node.names}
    return names


def _dotted(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Attribute):
        return [*_dotted(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else [""]


def too_large(folder: Path) -> list[str]:
    """Files and classes over the limits. Fields of dataclasses and NamedTuples do not count."""
    violations = []
    for module, path in modules(folder).items():
        text = path.read_text()
        if text.count("\n") > MAX_LINES:
            violations.append(f"{module}: lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                methods, attributes = size(node)
                if methods > MAX_METHODS:
                    violations.append(f"{module}.{node.name}: methods")
                if attributes > MAX_ATTRIBUTES:
                    violations.append(f"{module}.{node.name}: attributes")
    return sorted(violations)


def size(node: ast.ClassDef) -> tuple[int, int]:
    """The number of methods of a class, and of attributes that they set on self."""
    methods = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    attributes = {
        n.attr
        for method in methods
        for n in ast.walk(method)
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
        if isinstance(n.value, ast.Name) and n.value.id == "self"
    }
    return len(methods), len(attributes)
