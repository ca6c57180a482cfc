"""Defaults that verbs and the live page share; nothing is imported, as `raddle --help` shows them."""

COMPARE_SECONDS = 10.0  # of each search, where several are compared
