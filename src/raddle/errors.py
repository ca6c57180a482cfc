"""The one exception that is meant for users, and how it quotes what they gave; the one warning."""

from __future__ import annotations

import re
from typing import NoReturn

MAX_QUOTED = 200  # characters of a user's text in a sentence
MAX_SENTENCE = 1000  # characters of a sentence
_LONG_TEXT = re.compile(
    rf"'[^']{{{MAX_QUOTED + 1},}}'|\"[^\"]{{{MAX_QUOTED + 1},}}\"|\S{{{MAX_QUOTED + 3},}}"
)


class InputError(ValueError):
    """What a user can mend: one sentence with the values and the next step.

    The command line prints it without a traceback and exits with 2. It is one line that can be printed,
    whatever names and texts it quotes, and quotes at most 200 characters of each.
    """

    def __init__(self, sentence: object = "") -> None:
        super().__init__(_one_line(str(sentence)))


def shorten(text: str, limit: int = MAX_QUOTED) -> str:
    """The beginning and the end of a text that is too long to be quoted in full."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"


def quote(value: object, limit: int = MAX_QUOTED) -> str:
    """A name or a text from outside, as a sentence quotes it."""
    return f"'{shorten(str(value), limit)}'"


def _one_line(text: str) -> str:
    """Long quotations and words shortened, and what cannot be printed written as an escape."""
    text = _LONG_TEXT.sub(lambda match: _shortened(match[0]), text)
    text = shorten(text, MAX_SENTENCE)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shortened(text: str) -> str:
    if text[0] in "'\"" and text[-1] == text[0]:
        return f"{text[0]}{shorten(text[1:-1])}{text[0]}"
    return shorten(text)


def unreachable(value: NoReturn) -> NoReturn:
    """Ends a list of cases that is complete: a type checker complains where it is not."""
    raise AssertionError(f"{value!r} is a case that nobody has thought of")


class FailedCandidate(RuntimeWarning):
    """A candidate of a search failed by a mistake in raddle, and the others competed without it.

    `warnings.simplefilter("error", FailedCandidate)` makes the search end there instead.
    """
