"""Writes the HTML that notebooks show for a result, a comparison or a timeline.

All texts of the user, such as names of models, are escaped, so they cannot become markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from raddle.reports.notebook.lanes import KINDS, draw_lanes
from raddle.reports.page.html import read_package_file, read_web_file
from raddle.reports.units import bytes_text, count_text, plural, seconds_text
from raddle.simulation.timeline import Timeline

# Notebooks say on an element around the outputs that their theme is dark.
DARK = ('[data-jp-theme-light="false"] .raddle-picture', ".vscode-dark .raddle-picture")


def result_html(heading: str, summary: str, timeline: Timeline | None) -> str:
    """Return the picture of a plan: a heading, its metrics and, unless None, its timeline."""
    parts = [_heading(heading), f"<div>{escape(summary)}</div>"]
    if timeline is not None:
        parts.append(_drawing(timeline))
    return _picture(parts)


def timeline_html(timeline: Timeline) -> str:
    """Return the picture of a timeline: the last step of each device."""
    step = seconds_text(timeline.step_seconds)
    return _picture([_heading(f"{step} a step on {timeline.cluster.name}"), _drawing(timeline)])


def comparison_html(heading: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the picture of a comparison: a bar for each method, as long as its step takes."""
    slowest = max((row["step_ms"] for row in rows if row["step_ms"] is not None), default=1.0)
    head = "".join(
        f'<th class="{style}">{title}</th>'
        for style, title in (
            ("name", "method"), ("", ""), ("", "step"), ("", "samples/s"), ("", "speedup"),
            ("", "peak memory"),
        )
    )  # fmt: skip
    body = "".join(_row(row, slowest) for row in rows)
    return _picture([_heading(heading), f"<table><tr>{head}</tr>{body}</table>"])


def _row(row: Mapping[str, Any], slowest: float) -> str:
    """Return the row of a method. slowest: milliseconds of the longest bar."""
    name = f'<td class="name">{escape(row["method"])}</td>'
    if row["step_ms"] is None:
        return f'<tr>{name}<td class="name error" colspan="5">{escape(row["error"])}</td></tr>'
    bar = f'<td class="bar"><b style="width: {100 * row["step_ms"] / slowest:.1f}%"></b></td>'
    speedup = "" if row["speedup"] is None else f"{row['speedup']:.2f}x"
    memory = bytes_text(row["peak_bytes"]) + ("" if row["fits"] else ", does not fit")
    texts = (seconds_text(row["step_ms"] / 1e3), count_text(row["samples_per_s"]), speedup, memory)
    cells = "".join(f"<td>{text}</td>" for text in texts)
    style = "fits" if row["fits"] else "unfit"
    return f'<tr class="{style}">{name}{bar}{cells}</tr>'


def _drawing(timeline: Timeline) -> str:
    """Return the lanes of a timeline, with a legend."""
    svg, kinds, hidden = draw_lanes(timeline)
    legend = "".join(f'<i style="background: var(--{k})"></i>{KINDS[k]}' for k in kinds)
    more = f"and {plural(hidden, 'more device')}; " if hidden else ""
    note = f"{more}the last simulated step; at the right, the share of time that a device computes"
    return f'{svg}<div class="legend">{legend}</div><div class="note">{note}</div>'


def _heading(text: str) -> str:
    return f'<div class="heading">{escape(text)}</div>'


def _picture(parts: Iterable[str]) -> str:
    """Return the parts in one element, with its style."""
    style = read_package_file("raddle.reports.notebook", "picture.css")
    light, dark = _colours()
    css = f".raddle-picture {{{light}}}\n{', '.join(DARK)} {{{dark}}}\n{style}"
    return f'<div class="raddle-picture"><style>{css}</style>{"".join(parts)}</div>'


def _colours() -> list[str]:
    """Return the definitions of the page's colours: those of its light theme and of its dark one."""
    blocks = re.findall(r"^:root[^{]*\{([^}]*)\}", read_web_file("page.css"), re.M)[:2]
    return ["".join(re.findall(r"--[a-z]+: #[0-9a-f]{6};", block)) for block in blocks]
