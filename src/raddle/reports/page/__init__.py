"""Writes one HTML file that shows plans: Python collects the data, `web/` has the scripts and styles.

docs/page.md says what the data looks like and how the page is put together.
"""
