"""Adding a schedule, a sync kind and so on touches few files: a toy of each is a patch to the sources.

The patch is applied to a copy. The copy passes mypy; its command line plans, simulates, verifies and
reports with the toy. The patch touches the files that CONTRIBUTING.md lists, and without one of its hunks,
mypy or an import fails.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest
from copies import HERE, Copy, files_of, without_each

SHUFFLED = """
import torch
from torch import nn

def shuffled(batch=4):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ChannelShuffle(2), nn.Conv2d(8, 4, 3), nn.Flatten(),
        nn.Linear(64, 5),
    )
    return model, (torch.randn(batch, 3, 6, 6),)
"""
STAGES = ("--method", "pipeline", "--stages", 2, "--microbatches", 4)


@dataclass(frozen=True)
class Toy:
    """How the command line is called, and a word in its output that only the toy can cause."""

    word: str
    model: str = "lenet-tiny"
    cluster: str = "local:2"
    options: tuple[object, ...] = ("--method", "data")


TOYS = {
    "operator": Toy("x[n c%2*4+c//2 h w]", "shuffled.py:shuffled", options=("--method", "model")),
    "schedule": Toy("pairs", options=(*STAGES, "--schedule", "pairs")),
    "sync": Toy("eager", options=("--method", "data", "--sync", "eager")),
    "search": Toy("shortest", options=("--method", "shortest")),
    "preset": Toy("a30", cluster="a30:1x2"),
    "message": Toy("release", options=(*STAGES, "--schedule", "gems-basic")),
}
# The fastest is run with all other tests, the others with `pytest -m slow tests/extending`.
EACH = [
    pytest.param(name, marks=() if name == "sync" else pytest.mark.slow, id=name) for name in TOYS
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """Made once for all tests: mypy and the JIT compiler use their caches from the second time on."""
    return Copy.make(tmp_path_factory.mktemp("extending"))


@contextmanager
def applied(copy: Copy, patch: str) -> Iterator[None]:
    copy.patch(patch)
    try:
        yield
    finally:
        copy.patch(patch, reverse=True)


def read(name: str) -> str:
    return (HERE / f"{name}.patch").read_text()


@pytest.mark.parametrize("name", EACH)
def test_a_toy_is_planned_simulated_verified_and_reported(
    copy: Copy, name: str, tmp_path: Path
) -> None:
    toy = TOYS[name]
    (copy.folder / "shuffled.py").write_text(SHUFFLED)
    plan, trace, page = (tmp_path / file for file in ("plan.json", "trace.json.gz", "page.html"))
    with applied(copy, read(name)):
        on = ("--cluster", toy.cluster, "--batch", 4)
        copy.raddle("plan", toy.model, *on, *toy.options, "--budget", 1, "-o", plan)
        copy.raddle("simulate", plan, "--trace", trace, "--json")
        verdict = json.loads(copy.raddle("verify", plan, "--threads", "--steps", 2, "--json"))
        copy.raddle("report", "--plan", plan, "--methods", "data", "--alternatives", 0, "-o", page)
        seen = plan.read_text() + gzip.decompress(trace.read_bytes()).decode()
        seen += copy.raddle("explain", plan, "--json")
        seen += copy.raddle("models", toy.model, "--batch", 4, "--json")
    assert all(check["holds"] for check in verdict["checks"])
    assert page.stat().st_size
    assert toy.word in seen


@pytest.mark.parametrize("name", EACH)
def test_nothing_may_be_left_out(copy: Copy, name: str) -> None:
    patch = read(name)
    for part in without_each(patch) if patch.count("\n@@ ") > 1 else []:
        with applied(copy, part):
            assert copy.wrong_imports() or copy.wrong_types(), f"nothing is wrong with\n{part}"
    with applied(copy, patch):
        assert not copy.wrong_imports()
        assert not copy.wrong_types()


@pytest.mark.slow
@pytest.mark.parametrize("argument", [", Traits(SavedTensors.NOTHING)", ", _kernel"])
def test_an_operator_says_how_it_runs_and_what_it_keeps(copy: Copy, argument: str) -> None:
    patch = read("operator")
    assert argument in patch
    with applied(copy, patch.replace(argument, "")):
        assert "declare() missing 1 required positional argument" in copy.wrong_imports()


@pytest.mark.parametrize("name", TOYS)
def test_the_files_of_a_patch_are_those_of_the_table(name: str) -> None:
    guide = (HERE.parents[1] / "CONTRIBUTING.md").read_text()
    row = re.search(rf"^\| {name}[^|]* \| (\d) \| ([^|]+) \|$", guide, re.MULTILINE)
    assert row is not None
    files, patterns = files_of(read(name)), re.findall(r"`([^`]+)`", row[2])
    assert len(files) == int(row[1]) == len(patterns)
    for file in files:
        assert any(fnmatch(file, pattern) for pattern in patterns), file
