"""Rules for names and for the documents that mention them, read from the sources.

Every check returns its violations, one string each.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

# Words that say nothing of the thing that they name.
VAGUE = {
    "own",
    "found",
    "known",
    "rest",
    "tell",
    "told",
    "carry",
    "heard",
    "home",
    "homes",
    "homing",
}
# Words with one meaning, and what a file that uses one in its names has to be about.
RESERVED = {"compil": "torch.compile", "routing": "experts"}
# File names that are the same in several folders of a package because the files do the same job there.
PARALLEL = {"__init__.py", "__main__.py", "method.py"}


class Renames(NamedTuple):
    """The tables of docs/renames.md."""

    modules: dict[str, str]  # dotted name: dotted name now
    files: dict[str, str]  # path: path now
    names: list[tuple[str, str, str]]  # module now, qualified name (Class.attribute), last part now


def read_renames(text: str) -> Renames:
    """Reads docs/renames.md.

    >>> text = "## Modules\\n| `a.b` | `a.c` |\\n## Other files\\n## Names\\n| `a.c` | `Old.x` | `y` |"
    >>> read_renames(text)
    Renames(modules={'a.b': 'a.c'}, files={}, names=[('a.c', 'Old.x', 'y')])
    """
    parts = re.split(r"^## (?:Modules|Other files|Names)$", text, flags=re.M)
    _, modules, files, names = ([re.findall("`([^`]+)`", s) for s in p.splitlines()] for p in parts)
    return Renames(
        {row[0]: row[1] for row in modules if len(row) == 2},
        {row[0]: row[1] for row in files if len(row) == 2},
        [(row[0], row[1], row[2]) for row in names if len(row) == 3],
    )


def defined_names(tree: ast.Module) -> set[str]:
    """Qualified names of a module's classes, functions, constants, methods, fields and attributes."""
    names: set[str] = set()

    def visit(node: ast.Module | ast.ClassDef, prefix: str) -> None:
        for child in node.body:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(prefix + child.name)
            elif isinstance(child, ast.Assign | ast.AnnAssign):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                for target in targets:
                    names.update(prefix + n.id for n in ast.walk(target) if isinstance(n, ast.Name))
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(node, ast.ClassDef):
                names.update(prefix + attribute for attribute in attributes_set(child))

    visit(tree, "")
    return names


def attributes_set(node: ast.AST) -> Iterator[str]:
    """Names of attributes of self that a method assigns."""
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            of_self = isinstance(child.value, ast.Name) and child.value.id == "self"
            yield from [child.attr] if of_self else []


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names of variables, parameters, attributes, functions and classes that a file defines, with lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def defined_by(path: Path) -> set[str]:
    """Every name that a file defines."""
    return {name for name, _ in bound_names(ast.parse(path.read_text()))} | {path.stem}


def vague_names(paths: Iterable[Path]) -> list[str]:
    """Definitions of names that say nothing of the thing."""
    return [
        f"{path}:{line}: {name}"
        for path in paths
        for name, line in bound_names(ast.parse(path.read_text()))
        if name.strip("_") in VAGUE
    ]


def reserved_names(paths: Iterable[Path]) -> list[str]:
    """Definitions of names, and files, that use a word with a meaning of its own for something else."""
    return [
        f"{path}:{line}: {name}"
        for path in paths
        for text in [path.read_text()]
        for name, line in [(path.stem, 0), *bound_names(ast.parse(text))]
        if any(word in name.lower() and topic not in text for word, topic in RESERVED.items())
    ]


def repeated_names(package: Path) -> list[str]:
    """Classes, and files, of one package that have the same name."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        relative = str(path.relative_to(package))
        if path.name not in PARALLEL:
            places[path.name].append(relative)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[f"class {node.name}"].append(relative)
    return [f"{name}: {', '.join(files)}" for name, files in places.items() if len(files) > 1]


def old_names(root: Path, renames: Renames, texts: Iterable[Path]) -> list[str]:
    """Old names that are still there: modules, files, definitions, and mentions of modules in texts."""
    wrong = [path for path in renames.files if (root / path).exists()]
    sources = {name: module_path(root, name) for name in renames.modules}
    wrong += [name for name, path in sources.items() if path is not None]
    trees: dict[str, set[str]] = {}
    for module, name, new in renames.names:
        if module not in trees:
            path = module_path(root, module)
            trees[module] = defined_names(ast.parse(path.read_text())) if path else set()
        if name in trees[module]:
            wrong.append(f"{module}: {name}, now {new}")
    gone = "|".join(re.escape(name) for name in sorted(renames.modules, key=len, reverse=True))
    for path in texts:
        wrong += [
            f"{path}: {name}"
            for name in re.findall(rf"(?<![\w.])(?:{gone})(?![\w])", path.read_text())
        ]
    return wrong


def module_path(root: Path, name: str) -> Path | None:
    """The file of a module, or None if there is no such module."""
    base = root / "src" if name.partition(".")[0] == "raddle" else root
    path = base.joinpath(*name.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.exists()), None)


def missing_paths(text: str, tree: Iterable[str]) -> list[str]:
    """Paths in backticks that no file or folder of the tree ends with.

    >>> missing_paths("`graph/box.py`, `graph/ops/`, `box.js` and `graph.box`", ["src/raddle/graph/box.py"])
    ['graph/ops/', 'box.js']
    """
    files = [f"/{path}" for path in tree]
    folders = {f"{path.rpartition('/')[0]}/" for path in files}
    folders |= {f"{part}/" for folder in folders for part in map(str, Path(folder).parents)}
    wrong = []
    for path in re.findall(r"`((?:[\w.-]+/)+|(?:[\w.-]+/)*[\w-]+\.(?:py|md|js|css))`", text):
        places = folders if path.endswith("/") else files
        if not any(place.endswith(f"/{path}") for place in places):
            wrong.append(path)
    return wrong
