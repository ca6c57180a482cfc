"""Defaults shared by the verbs and the live page; imports nothing, so that `raddle --help` is fast."""

COMPARE_SECONDS = 10.0  # for each search, where several methods are compared
