"""What an experiment has found: sections of tables and charts, whose figures say where they are from."""

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
