"""Defaults that the verbs (sub-commands) and the page of `raddle serve` share.

This module imports next to nothing, so that `raddle --help` is fast.
"""

from raddle.searches.aliases import alias_text

ALIASES = alias_text()  # other names of methods, as text
COMPARE_SECONDS = 10.0  # the budget of each search in seconds, where several methods are compared
