"""Draws pictures for notebooks: HTML with inline SVG, which needs no script and fetches nothing.

A picture has a style sheet (picture.css) and the colours of the page of `raddle report`.
"""

from raddle.reports.notebook.pictures import comparison_html, result_html, timeline_html

__all__ = ["comparison_html", "result_html", "timeline_html"]
