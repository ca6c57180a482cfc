"""Writes the result of an experiment as Markdown: `raddle reproduce -o FILE.md`, READMEs of bench/."""

from __future__ import annotations

from raddle.reports.experiments.result import (
    Cell,
    Chart,
    Column,
    Drawing,
    Result,
    Section,
    Table,
    cell_text,
)


def markdown(result: Result) -> str:
    """Return the Markdown text of a result: a heading, the machine and duration, and the sections."""
    size = "quick" if result.quick else "full"
    lines = [f"# {result.title}", "", f"{result.machine}; {size}, {result.seconds:.0f} s.", ""]
    for section in result.sections:
        lines += section_lines(section)
    return "\n".join(lines).rstrip() + "\n"


def section_lines(section: Section) -> list[str]:
    """Return the lines of Markdown for a section."""
    lines = [f"## {section.title}", ""]
    if section.skipped:
        lines += [f"Skipped: {section.skipped}", ""]
    if section.text:
        lines += [section.text, ""]
    for part in section.parts:
        lines += [f"### {part.title}", ""]
        if isinstance(part, Table):
            lines += _table(part)
        elif isinstance(part, Chart):
            lines += _table(chart_to_table(part))
        else:
            lines += _drawing(part)
        lines.append("")
        if part.note:
            lines += [part.note, ""]
    return lines


def _table(table: Table) -> list[str]:
    """Return the lines of Markdown for a table."""
    heads = [_escape(f"{c.name} ({c.source})" if c.source else c.name) for c in table.columns]
    lines = [_row(heads), "|---" * len(heads) + "|"]
    for row in table.rows:
        cells = [
            _escape(cell_text(value, column))
            for value, column in zip(row, table.columns, strict=True)
        ]
        lines.append(_row(cells))
    return lines


def chart_to_table(chart: Chart) -> Table:
    """Return a chart as a table: a row for each x, a column for each line (None: no point there)."""
    all_x = sorted({x for line in chart.lines for x, _ in line.points})
    lines_by_x = [dict(line.points) for line in chart.lines]
    rows: list[list[Cell]] = [
        [int(x) if float(x).is_integer() else x, *(line_by_x.get(x) for line_by_x in lines_by_x)]
        for x in all_x
    ]
    columns = [Column(chart.x), *(Column(line.name, line.source) for line in chart.lines)]
    return Table(f"{chart.title} ({chart.y})", columns, rows)


def _drawing(drawing: Drawing) -> list[str]:
    """Return the lines of Markdown for a drawing, in a monospaced font."""
    return ["```", *drawing.lines, "```"]


def _row(cells: list[str]) -> str:
    """Return the line of a table's row."""
    return "| " + " | ".join(cells) + " |"


def _escape(text: str) -> str:
    """Return text for a cell of a table, in which | would end the cell."""
    return text.replace("|", "\\|")
