"""One HTML file that shows plans: data in `data.py` and beside it, scripts and styles in `web/`.

docs/page.md says what the data looks like and how the page is put together.
"""
