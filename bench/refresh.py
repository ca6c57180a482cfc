"""Writes new results of `raddle reproduce` into bench/NAME: all of results.md, and "Found" in README.md.

    raddle reproduce p3 --part bandwidth -o bandwidth.json
    python bench/refresh.py bandwidth.json            # as many files as there are

A part that is in none of the files keeps its old results, so that parts can be measured one by one.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # the experiments

from experiments.experiment import load
from raddle.reports.experiments.markdown import section_lines
from raddle.reports.experiments.result import Result, result_from_dict

HERE = pathlib.Path(__file__).parent
Blocks = dict[str, str]  # title of a part -> its text


def main(paths: list[str]) -> None:
    """Write the results in these files, which `raddle reproduce -o FILE.json` has written."""
    for path in paths:
        put(result_from_dict(json.loads(pathlib.Path(path).read_text())))


def put(result: Result) -> None:
    """Write one result into the folder of its experiment."""
    folder = HERE / result.name.replace("-", "_")
    titles = [part.title for part in load(result.name).parts]
    _results(folder / "results.md", result, titles)
    _readme(folder / "README.md", result, titles)


def _results(path: pathlib.Path, result: Result, titles: list[str]) -> None:
    """Replace the result's parts in results.md; titles: of all parts, in the order of the file."""
    blocks = _blocks(path.read_text(), r"^## (.+)$") if path.exists() else {}
    blocks |= {
        section.title: "\n".join(
            [f"## {section.title}", "", _made(result), "", *section_lines(section)[2:]]
        )
        for section in result.sections
    }
    path.write_text(
        "\n".join([f"# {result.title}", "", *_in_order(blocks, titles)]).rstrip() + "\n"
    )


def _readme(path: pathlib.Path, result: Result, titles: list[str]) -> None:
    """Replace the result's parts in the section "Found" of README.md; each begins as "**Title.**"."""
    before, section_text, after = _around(path.read_text())
    first = re.search(r"^\*\*", section_text, re.MULTILINE)
    head = section_text[: first.start()] if first else section_text
    blocks = _blocks(section_text, r"^\*\*(.+?)\.?\*\*")
    blocks |= {
        section.title: f"**{section.title}.** *{_made(result)}* {section.text or section.skipped}\n"
        for section in result.sections
    }
    path.write_text(before + head + "\n".join(_in_order(blocks, titles)) + after)


def _around(text: str) -> tuple[str, str, str]:
    """Return the text before, in and after the section "Found"."""
    begin = text.index("## Found\n")
    end = text.find("\n## ", begin)
    return text[:begin], text[begin:end], text[end:]


def _blocks(text: str, start: str) -> Blocks:
    """Split a text before every match of the pattern `start`, whose first group is the block's title."""
    matches = list(re.finditer(start, text, re.MULTILINE))
    assert matches, f"nothing begins as {start}"
    ends = [match.start() for match in matches[1:]] + [len(text)]
    return {match[1]: text[match.start() : end] for match, end in zip(matches, ends, strict=True)}


def _in_order(blocks: Blocks, titles: list[str]) -> list[str]:
    """Return the texts of the blocks in the order of the titles."""
    assert set(blocks) <= set(titles), f"no part is called {set(blocks) - set(titles)}"
    return [blocks[title].rstrip() + "\n" for title in titles if title in blocks]


def _made(result: Result) -> str:
    """Return a sentence that says how a result was made: its size, duration and machine."""
    size = "Quick" if result.quick else "Full"
    return f"{size} size, {result.seconds:.0f} s, {result.machine}."


if __name__ == "__main__":
    main(sys.argv[1:])
