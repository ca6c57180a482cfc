"""Presents results to people: tables for a terminal, HTML pages for a browser."""
