"""Names and documents use one word for one thing: vague names, old names and stale paths are found."""

from __future__ import annotations

import doctest
import re
import subprocess
from pathlib import Path

import pytest
import words

ROOT = Path(__file__).parents[1]
DOCS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
PACKAGES = sorted(path.parent for path in (ROOT / "src" / "raddle").glob("*/__init__.py"))
RENAMES = words.read_renames((ROOT / "docs" / "renames.md").read_text())


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def tracked() -> list[str]:
    """Files of the checkout, without those that git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()


def test_names_say_what_the_thing_is() -> None:
    assert words.vague_names(sources("src", "experiments", "tests", "bench", "examples")) == []


def test_compile_and_routing_have_one_meaning() -> None:
    assert words.reserved_names(sources("src")) == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_name_means_one_thing_in_a_package(package: Path) -> None:
    assert words.repeated_names(package) == []


def test_no_old_name_is_left() -> None:
    texts = [ROOT / path for path in tracked() if re.search(r"\.(py|md|toml|patch|js)$", path)]
    skipped = {ROOT / "docs" / "renames.md", ROOT / "CHANGELOG.md"}
    assert words.old_names(ROOT, RENAMES, [path for path in texts if path not in skipped]) == []


def test_renamed_modules_and_files_exist() -> None:
    assert [new for new in RENAMES.modules.values() if words.module_path(ROOT, new) is None] == []
    assert [new for new in RENAMES.files.values() if not (ROOT / new).exists()] == []


@pytest.mark.parametrize(
    "page", [p for p in DOCS if p.name != "renames.md"], ids=lambda path: path.name
)
def test_paths_in_the_documents_exist(page: Path) -> None:
    assert words.missing_paths(page.read_text(), tracked()) == []


@pytest.mark.parametrize("page", DOCS, ids=lambda path: path.name)
def test_links_between_the_documents_exist(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_names_in_the_tour_are_defined() -> None:
    """Every `name` and `Class.name` of docs/design.md is defined in the package."""
    text = (ROOT / "docs" / "design.md").read_text()
    named = set(re.findall(r"`([A-Za-z_]+(?:\.(?!py`)[a-z_]+)?)`", text))
    every = {name for path in sources("src") for name in words.defined_by(path)}
    of_torch = {"nn.Module", "torch.export", "autograd.grad"}
    assert {name for name in named if name.split(".")[-1] not in every} <= of_torch


def test_the_tour_is_short_and_the_glossary_is_linked() -> None:
    assert len((ROOT / "docs" / "design.md").read_text().split()) < 2500
    for page in ("README.md", "CONTRIBUTING.md", "docs/design.md"):
        assert "glossary.md" in (ROOT / page).read_text(), page


def test_planted_violations_are_found(tmp_path: Path) -> None:
    package = tmp_path / "src" / "raddle" / "a"
    (package / "b").mkdir(parents=True)
    (package / "one.py").write_text(
        "class Same:\n    def __init__(self, own):\n        self.old = own\n"
    )
    (package / "b" / "one.py").write_text("class Same: ...\ncompiled = [rest for rest in ()]\n")
    paths = sorted(tmp_path.rglob("*.py"))
    assert [line.rpartition(" ")[2] for line in words.vague_names(paths)] == ["rest", "own"]
    assert [line.rpartition(" ")[2] for line in words.reserved_names(paths)] == ["compiled"]
    assert words.repeated_names(package) == [
        "one.py: b/one.py, one.py",
        "class Same: b/one.py, one.py",
    ]
    (text := tmp_path / "page.md").write_text("see raddle.a.one")
    renames = words.Renames(
        {"raddle.a.one": "x"}, {"page.md": "y"}, [("raddle.a.one", "Same.old", "z")]
    )
    assert words.old_names(tmp_path, renames, [text]) == [
        "page.md", "raddle.a.one", "raddle.a.one: Same.old, now z", f"{text}: raddle.a.one",
    ]  # fmt: skip


def test_examples_of_the_rules_run() -> None:
    assert not doctest.testmod(words).failed
