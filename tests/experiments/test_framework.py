"""`raddle reproduce`: parts in turn, figures in words, and the same in every face."""

from __future__ import annotations

import json
import math
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import made_up
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.experiment import EXPERIMENTS, Experiment, choose, load, reproduce
from raddle.cli import main as cli
from raddle.errors import InputError
from raddle.reports.experiments.markdown import chart_to_table, markdown
from raddle.reports.experiments.result import (
    Cell,
    Chart,
    Column,
    Line,
    Table,
    cell_text,
    result_from_dict,
    result_to_dict,
)

MADE_UP = Experiment("made-up", made_up.TITLE, made_up.CLAIMS, made_up.DIFFERS, made_up.PARTS)

MARKDOWN = """\
## Steps

The first.

The second.

### A step

| plan | devices | step, ms (measured) | step, ms (printed) |
|---|---|---|---|
| b\\|c | 2 | 12.3 | – |
| a | 10 | 1234 | 0.5 |
| d | 1 | – | 3.2 |

of batch 8

## Speed

### Throughput

| devices | data (simulated) | data (printed) | ours (measured) |
|---|---|---|---|
| 1 | 100 | 90.0 | – |
| 2 | 200 | 180 | 300 |
| 4 | 400 | 360 | 600 |
| 8 | 800 | – | 1200 |

### A plan

```
conv  n/2
fc    c/2
```

a row a layer

## Links

Skipped: there is no lab on this machine.
"""


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (None, None, "–"),
        (None, 2, "–"),
        ("c/4 @0-3", 2, "c/4 @0-3"),
        (0, None, "0"),
        (0.0, None, "0"),
        (0.0, 2, "0.00"),
        (7, None, "7"),
        (7, 1, "7.0"),
        (123456789, None, "123456789"),
        (1234.5, None, "1234"),
        (100.0, None, "100"),
        (99.96, None, "100"),  # not 99.96, and not 100.0
        (99.94, None, "99.9"),
        (9.996, None, "10.0"),
        (1.0, None, "1.00"),
        (-12.345, None, "-12.3"),
        (0.01234, None, "0.0123"),
        (0.00009996, None, "0.000100"),
        (2.345, 0, "2"),
        (math.inf, None, "inf"),
        (math.nan, None, "nan"),
        (math.nan, 1, "nan"),
    ],
)
def test_figures_in_words(value: Cell, digits: int | None, text: str) -> None:
    assert cell_text(value, Column("x", digits=digits)) == text


@given(st.floats(1e-9, 1e15), st.sampled_from([-1, 1]))
def test_three_digits_are_kept(value: float, sign: int) -> None:
    text = cell_text(sign * value, Column("x"))
    assert float(text) == pytest.approx(sign * value, rel=5.001e-3)
    assert len(text.strip("-").replace(".", "").lstrip("0")) >= 3


def test_a_wrong_column_or_row_is_refused_at_once() -> None:
    with pytest.raises(AssertionError, match="guessed"):
        Column("x", "guessed")
    with pytest.raises(AssertionError, match="short"):
        Table("short", [Column("a"), Column("b")], [[1]])


def test_a_line_of_a_chart_is_a_column() -> None:
    lines = [Line("a", [(4, 1.0), (1, 2.0)], "measured"), Line("b", [(2, 3.0), (4, 5.0)])]
    table = chart_to_table(Chart("t", "x, s", "y, m", lines))
    assert table.title == "t (y, m)"
    assert table.columns == [Column("x, s"), Column("a", "measured"), Column("b")]
    assert table.rows == [[1, 2.0, None], [2, None, 3.0], [4, 1.0, 5.0]]


def test_the_whole_as_markdown() -> None:
    result = reproduce(MADE_UP, quick=False, on_progress=lambda state: None)
    head, _, sections = markdown(result).partition("\n## Steps")
    assert head.startswith("# A made-up paper\n\n")
    assert head.rstrip().endswith("; full, 0 s.")
    assert f"## Steps{sections}" == MARKDOWN


def test_progress_is_reported_part_by_part() -> None:
    states: list[Mapping[str, Any]] = []
    reproduce(MADE_UP, quick=True, on_progress=states.append)
    assert [(state["step"], state["done"], state["of"]) for state in states] == [
        ("Steps", 0, 3),
        ("Speed", 1, 3),
        ("half of it", 1.5, 3),
        ("Links", 2, 3),
    ]


def test_quick_is_passed_on() -> None:
    for quick, rows in ((True, 2), (False, 3)):
        result = reproduce(MADE_UP, quick=quick, on_progress=lambda state: None)
        assert result.quick == quick
        assert len(result_to_dict(result)["sections"][0]["parts"][0]["rows"]) == rows


def test_a_part_says_what_it_is() -> None:
    data = result_to_dict(reproduce(MADE_UP, quick=False, on_progress=lambda state: None))
    kinds = [[part["is"] for part in section["parts"]] for section in data["sections"]]
    assert kinds == [["table"], ["chart", "drawing"], []]
    assert data["sections"][2]["skipped"] == "there is no lab on this machine."


def test_json_is_read_back() -> None:
    result = reproduce(MADE_UP, quick=True, on_progress=lambda state: None)
    written = json.dumps(result_to_dict(result))
    back = result_from_dict(json.loads(written))
    assert json.dumps(result_to_dict(back)) == written
    assert markdown(back) == markdown(result)


def test_parts_are_chosen_in_the_order_of_the_experiment() -> None:
    assert choose(MADE_UP, []).parts == list(made_up.PARTS)
    assert [part.name for part in choose(MADE_UP, ["skipped", "table"]).parts] == [
        "table",
        "skipped",
    ]
    with pytest.raises(InputError, match=r"no part 'tables': choose from table, chart, skipped\."):
        choose(MADE_UP, ["table", "tables"])


def test_no_experiment_of_this_name() -> None:
    with pytest.raises(InputError, match=r"no experiment 'thesi': choose from thesis, gems-unet,"):
        load("thesi")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_loaded(name: str) -> None:
    experiment = load(name)
    assert experiment.title
    assert experiment.claims
    assert experiment.differs
    names = [part.name for part in experiment.parts]
    assert len(set(names)) == len(names) > 0
    assert all(name == "".join(name.split()) for name in names)


# The verb


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Raddle = Callable[..., Done]


@pytest.fixture
def raddle(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Raddle:
    """A verb in this process, which knows the experiment 'made-up'."""
    monkeypatch.setitem(EXPERIMENTS, "made-up", "what tests need")
    monkeypatch.setitem(sys.modules, "experiments.made_up", made_up)

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["raddle", *words])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *capsys.readouterr())

    return run


def test_the_list(raddle: Raddle) -> None:
    done = raddle("reproduce")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    for name, sentence in EXPERIMENTS.items():
        assert any(line.split()[:1] == [name] and sentence in line for line in lines)
    assert json.loads(raddle("reproduce", "--json").stdout) == EXPERIMENTS


def test_a_result_at_the_terminal(raddle: Raddle) -> None:
    done = raddle("reproduce", "made-up", "--part", "table", "--part", "skipped")
    assert done.returncode == 0, done.stderr
    words = [line.split() for line in done.stdout.splitlines()]
    assert ["A", "made-up", "paper"] in words
    assert ["b|c", "2", "12.3", "–"] in words
    assert "skipped: there is no lab on this machine." in done.stdout.splitlines()
    assert "Throughput" not in done.stdout


def test_every_face_has_the_same_figures(raddle: Raddle, tmp_path: pathlib.Path) -> None:
    data = json.loads(raddle("reproduce", "made-up", "--quick", "--json").stdout)
    assert (data["name"], data["quick"]) == ("made-up", True)
    for suffix in (".json", ".md", ".html"):
        path = tmp_path / f"found{suffix}"
        done = raddle("reproduce", "made-up", "--quick", "-o", str(path))
        assert done.returncode == 0, done.stderr
        assert "1234" in done.stdout
        assert path.stat().st_size > 500
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["sections"] == data["sections"]
    assert "| a | 10 | 1234 | 0.5 |" in (tmp_path / "found.md").read_text()
    assert (tmp_path / "found.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("thesi",), "there is no experiment 'thesi': choose from thesis,"),
        (("../made_up",), "there is no experiment '../made_up'"),
        (("made-up", "--part", "tables"), "has no part 'tables': choose from table,"),
        (("made-up", "-o", "page.pdf"), "'page.pdf' must end in .html, .md, .json"),
        (("made-up", "-o", "page"), "'page' must end in .html"),
        (("made-up", "-o", "no/such/folder/page.html"), "there is no folder"),
        (("made-up", "-o", "/proc/page.md"), "cannot be written"),
    ],
)
def test_bad_input_gets_one_sentence(raddle: Raddle, words: tuple[str, ...], reason: str) -> None:
    done = raddle("reproduce", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("raddle: ")
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_part_that_fails_says_so_and_loses_no_other(
    raddle: Raddle, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(made_up, "PARTS", made_up.FAILING)
    path = tmp_path / "found.json"
    done = raddle("reproduce", "made-up", "-o", str(path))
    assert done.returncode == 0
    assert "skipped: two ranks of this machine failed: free some memory." in done.stdout
    sections = json.loads(path.read_text())["sections"]
    assert [bool(s["skipped"]) for s in sections] == [False, False, True, True]
    assert sections[0]["parts"]


IMPORTS = """
import sys
from raddle.cli import main as cli

for words in (["--help"], ["reproduce"]):
    sys.argv = ["raddle", *words]
    try:
        cli.main()
    except SystemExit:
        pass
    told = ("torch", "raddle", "experiments")
    print("imported", *(name for name in sys.modules if name.startswith(told)))
"""


def test_help_imports_no_experiment_and_the_list_no_torch() -> None:
    line = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("imported")]
    helped, listed = map(set, lines)
    assert "raddle.cli.reproduce" in helped  # the log is what we think it is
    assert not any(name.startswith("experiments") for name in helped)
    assert "experiments.experiment" in listed
    assert "torch" not in listed
