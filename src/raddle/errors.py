"""Defines InputError, the exception for mistakes of users, and how it quotes long texts.

FailedCandidate is a warning of searches, OutOfTime the exception that ends what a search has no time for.
"""

from __future__ import annotations

import re
from typing import NoReturn

MAX_QUOTED = 200  # characters of a user's text that a sentence quotes
MAX_SENTENCE = 1000  # characters of a sentence
# A quotation or a word that is too long to be shown.
_LONG_TEXT = re.compile(
    rf"'[^']{{{MAX_QUOTED + 1},}}'|\"[^\"]{{{MAX_QUOTED + 1},}}\"|\S{{{MAX_QUOTED + 3},}}"
)


class InputError(ValueError):
    """A mistake that the user can correct: one sentence with the values and the next step.

    The command line prints it without a traceback and exits with 2. The sentence is one printable line and
    quotes at most 200 characters of each name or text.
    """

    def __init__(self, sentence: object = "") -> None:
        super().__init__(_one_line(str(sentence)))


class OutOfTime(Exception):
    """The time of a search is used up (searches/stopwatch.py). The search returns its best plan so far."""


def shorten(text: str, limit: int = MAX_QUOTED) -> str:
    """Returns the text or, if it has more than `limit` characters, its beginning, … and its end."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"


def quote(value: object, limit: int = MAX_QUOTED) -> str:
    """Returns a name or text of a user in quotation marks, shortened to `limit` characters."""
    return f"'{shorten(str(value), limit)}'"


def _one_line(text: str) -> str:
    """Returns the text as one printable line, with long quotations and words shortened."""
    text = _LONG_TEXT.sub(lambda match: _shortened(match[0]), text)
    text = shorten(text, MAX_SENTENCE)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shortened(text: str) -> str:
    """Returns a word or quotation, shortened; a quotation keeps its quotation marks."""
    if text[0] in "'\"" and text[-1] == text[0]:
        return f"{text[0]}{shorten(text[1:-1])}{text[0]}"
    return shorten(text)


def unreachable(value: NoReturn) -> NoReturn:
    """Ends a complete list of cases: mypy reports an error if a case is missing. Raises AssertionError."""
    raise AssertionError(f"{value!r} is a case that is not handled")


class FailedCandidate(RuntimeWarning):
    """Warns that a candidate of a search failed because of a bug in raddle; the search goes on without it.

    `warnings.simplefilter("error", FailedCandidate)` turns the warning into an error that ends the search.
    """
