"""Results of experiments: sections of tables and charts that name the source of their numbers.

A `Cell` is one entry of a table; a `Line` is one curve of a chart; a `Drawing` is lines of text.
"""

from __future__ import annotations

from raddle.reports.experiments.result import (
    Cell,
    Chart,
    Column,
    Drawing,
    Line,
    Result,
    Section,
    Table,
)

__all__ = ["Cell", "Chart", "Column", "Drawing", "Line", "Result", "Section", "Table"]
