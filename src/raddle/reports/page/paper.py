"""Writes the page of `raddle reproduce`: the result of an experiment in one self-contained HTML file.

Numbers are formatted here by `cell_text`, so that the page shows the same text as the terminal and the
Markdown. The page also gets the numbers themselves, to sort and draw by.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from typing import Any

from raddle.reports.experiments.markdown import chart_to_table
from raddle.reports.experiments.result import (
    Cell,
    Chart,
    Column,
    Drawing,
    Line,
    Result,
    Section,
    Table,
    cell_text,
    result_to_dict,
)
from raddle.reports.page.html import assemble_page, pack_data

SCRIPTS = (
    "basics.js", "data.js", "colours.js", "tables.js", "axes.js", "plots.js", "paper.js", "start.js",
)  # fmt: skip
STYLES = ("page.css", "charts.css", "paper.css")
MAX_FLOAT = sys.float_info.max


def paper_page(result: Result) -> str:
    """Return the HTML of a result."""
    return assemble_page(pack_data(paper_data(result)), scripts=SCRIPTS, styles=STYLES)


def paper_data(result: Result) -> dict[str, Any]:
    """Return the data of `result_to_dict`, with text split into paragraphs and numbers formatted."""
    return {
        **result_to_dict(result),
        "sections": [_section(section) for section in result.sections],
    }


def _section(section: Section) -> dict[str, Any]:
    """Return a section for the page; an empty line separates paragraphs of its text."""
    return {
        "title": section.title,
        "text": [text for text in re.split(r"\n\s*\n", section.text.strip()) if text],
        "skipped": section.skipped,
        "parts": [_part(part) for part in section.parts],
    }


def _part(part: Table | Chart | Drawing) -> dict[str, Any]:
    """Return a table, chart or drawing for the page; "is" has its type."""
    common = {"title": part.title, "note": part.note}
    if isinstance(part, Table):
        return {"is": "table", **common, "table": _table(part)}
    if isinstance(part, Drawing):
        return {"is": "drawing", **common, "lines": list(part.lines)}
    return {
        "is": "chart", **common, "x": part.x, "y": part.y, "log_x": part.log_x, "log_y": part.log_y,
        "lines": [_line(line, part) for line in part.lines], "table": _table(chart_to_table(part)),
    }  # fmt: skip


def _table(table: Table) -> Mapping[str, Any]:
    """Describe a table; "number" marks a column with any number, which the page aligns right."""
    columns = [
        {
            "name": column.name,
            "source": column.source,
            "number": any(isinstance(row[i], int | float) for row in table.rows),
        }
        for i, column in enumerate(table.columns)
    ]
    rows = [
        [_cell(value, column) for value, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]
    return {"columns": columns, "rows": rows}


def _cell(value: Cell, column: Column) -> list[Any]:
    """Return [text], [text, number], or [text, None] for a missing value, which is sorted last."""
    text = cell_text(value, column)
    if isinstance(value, str):
        return [text]
    if value is None or math.isnan(value):
        return [text, None]
    return [text, max(-MAX_FLOAT, min(MAX_FLOAT, value))]  # JSON has no infinity


def _line(line: Line, chart: Chart) -> dict[str, Any]:
    """Describe a line with points [x, y, text of x, text of y]; points that are not finite are left out."""
    x_column, y_column = Column(chart.x), Column(line.name)
    points = [
        [x, y, cell_text(x, x_column), cell_text(y, y_column)]
        for x, y in line.points
        if math.isfinite(x) and math.isfinite(y)
    ]
    return {"name": line.name, "source": line.source, "points": points}
