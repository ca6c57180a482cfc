"""Defines the result of an experiment (`raddle reproduce`): sections of tables, charts and drawings.

A column of a table and a line of a chart name the source of their numbers:

measured    by a run on this machine
simulated   by raddle, on the named cluster
counted     from a plan alone: bytes, flops, weights
printed     in the paper
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Cell = str | float | int | None  # one entry of a table; None: no value
# "": the column or line needs no source, such as a column of names.
SOURCES = ("", "measured", "simulated", "counted", "printed")


@dataclass(frozen=True)
class Column:
    """A column of a table.

    digits: digits after the decimal point; None: as many as give three significant digits.
    """

    name: str
    source: str = ""  # one of SOURCES
    digits: int | None = None

    def __post_init__(self) -> None:
        assert self.source in SOURCES, self.source


@dataclass(frozen=True)
class Table:
    """A table; each row has a cell for each column."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""  # below the table: units, and differences from the paper

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), (self.title, row)


@dataclass(frozen=True)
class Line:
    """A line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]  # (x, y)
    source: str = ""  # one of SOURCES


@dataclass(frozen=True)
class Chart:
    """A chart of lines over one x axis."""

    title: str
    x: str  # title of the x axis, with its unit
    y: str  # title of the y axis, with its unit
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    note: str = ""


@dataclass(frozen=True)
class Drawing:
    """Lines of text, shown in a monospaced font."""

    title: str
    lines: Sequence[str]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A section of a result, with its tables, charts and drawings as `parts`.

    skipped: why this machine cannot run it; empty if it was run.
    """

    title: str
    text: str = ""  # paragraphs, separated by empty lines
    parts: Sequence[Table | Chart | Drawing] = ()
    skipped: str = ""


@dataclass(frozen=True)
class Result:
    """The result of an experiment."""

    name: str  # of the experiment, as in `raddle reproduce NAME`
    title: str
    claims: Sequence[str]  # of the paper, one sentence each
    differs: Sequence[str]  # how the experiment differs from the paper's
    sections: Sequence[Section]
    machine: str  # a description of the machine that ran it
    quick: bool  # whether only the small sizes were done
    seconds: float  # duration of the experiment
    version: str = field(default="")  # of raddle


def result_to_dict(result: Result) -> dict[str, Any]:
    """Return the result as JSON data; each part has its type in "is": table, chart or drawing."""
    data = asdict(result)
    for section, section_object in zip(data["sections"], result.sections, strict=True):
        for part, part_object in zip(section["parts"], section_object.parts, strict=True):
            part["is"] = type(part_object).__name__.lower()
    return data


def result_from_dict(data: dict[str, Any]) -> Result:
    """Return the result that `result_to_dict` made this data of."""
    sections = [
        Section(**{**section, "parts": [_part(part) for part in section["parts"]]})
        for section in data["sections"]
    ]
    return Result(**{**data, "sections": sections})


def _part(data: dict[str, Any]) -> Table | Chart | Drawing:
    """Return the table, chart or drawing that `result_to_dict` made this data of."""
    fields = {key: value for key, value in data.items() if key != "is"}
    if data["is"] == "table":
        return Table(**{**fields, "columns": [Column(**column) for column in fields["columns"]]})
    if data["is"] == "chart":
        lines = [
            Line(**{**line, "points": [(x, y) for x, y in line["points"]]})
            for line in fields["lines"]
        ]
        return Chart(**{**fields, "lines": lines})
    return Drawing(**fields)


def cell_text(value: Cell, column: Column) -> str:
    """Return a cell's text: 1234.5 -> "1234", 0.01234 -> "0.0123" (if `digits` is None), None -> a dash."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if column.digits is not None:
        return f"{value:.{column.digits}f}"
    if isinstance(value, int) or not abs(value) < 100:  # true for NaN too
        return f"{value:.0f}"
    if value == 0:
        return "0"
    return f"{value:.{max(0, 2 - _exponent(abs(value)))}f}"


def _exponent(value: float) -> int:
    """Return the decimal exponent of a value that is rounded to three digits: 0.09999 -> -1."""
    return int(f"{value:.2e}".partition("e")[2])
