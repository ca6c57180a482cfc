"""Defaults that the verbs (sub-commands) and the page of `raddle serve` share.

This module imports nothing, so that `raddle --help` is fast.
"""

COMPARE_SECONDS = 10.0  # the budget of each search in seconds, where several methods are compared
