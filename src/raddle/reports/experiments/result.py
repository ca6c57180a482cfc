"""What an experiment has found: sections of tables, charts and drawings, and where each figure is from.

measured    on this machine, by running it
simulated   by raddle, on the cluster that is named
counted     from a plan alone: bytes, flops, weights
printed     in the paper
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Cell = str | float | int | None
SOURCES = ("", "measured", "simulated", "counted", "printed")


@dataclass(frozen=True)
class Column:
    """`digits` after the point; without any, as many as three in all need."""

    name: str
    source: str = ""
    digits: int | None = None

    def __post_init__(self) -> None:
        assert self.source in SOURCES, self.source


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""  # units, and what differs

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), (self.title, row)


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]
    source: str = ""


@dataclass(frozen=True)
class Chart:
    title: str
    x: str  # with its unit
    y: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    note: str = ""


@dataclass(frozen=True)
class Drawing:
    """Lines of text, each character as wide as another."""

    title: str
    lines: Sequence[str]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """`skipped`: why there is nothing, where this machine cannot do it."""

    title: str
    text: str = ""  # paragraphs, apart by empty lines
    parts: Sequence[Table | Chart | Drawing] = ()
    skipped: str = ""


@dataclass(frozen=True)
class Result:
    name: str
    title: str
    claims: Sequence[str]  # of the paper, in one sentence each
    differs: Sequence[str]  # what is not as it was there
    sections: Sequence[Section]
    machine: str
    quick: bool
    seconds: float
    version: str = field(default="")


def result_to_dict(result: Result) -> dict[str, Any]:
    """As JSON has it; a part says what it is."""
    data = asdict(result)
    for section, section_object in zip(data["sections"], result.sections, strict=True):
        for part, part_object in zip(section["parts"], section_object.parts, strict=True):
            part["is"] = type(part_object).__name__.lower()
    return data


def result_from_dict(data: dict[str, Any]) -> Result:
    """What `plain` was made of."""
    sections = [
        Section(**{**section, "parts": [_part(part) for part in section["parts"]]})
        for section in data["sections"]
    ]
    return Result(**{**data, "sections": sections})


def _part(data: dict[str, Any]) -> Table | Chart | Drawing:
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
    """1234.5 -> "1234", 0.01234 -> "0.0123"; what there is not, is a dash."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if column.digits is not None:
        return f"{value:.{column.digits}f}"
    if isinstance(value, int) or not abs(value) < 100:  # also what is no number
        return f"{value:.0f}"
    if value == 0:
        return "0"
    return f"{value:.{max(0, 2 - _exponent(abs(value)))}f}"


def _exponent(value: float) -> int:
    return int(f"{value:.2e}".partition("e")[2])
