"""Candidates of a search are tried one by one: one that fails is written down, and the others compete.

A candidate that cannot be applied is refused (InputError); that is ordinary. Any other exception is a
mistake in raddle. It is reported with its type, message and place, and warned of: nobody overlooks it.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from raddle.errors import FailedCandidate, InputError


class Failure(NamedTuple):
    """A candidate that gave no plan, and why."""

    name: str
    error: str
    refused: bool  # it cannot be applied; otherwise raddle has made a mistake

    def row(self) -> dict[str, Any]:
        return self._asdict()


class Attempts:
    """What has failed so far in one search."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Goes on after the block if it raises; what is out of memory, or interrupted, ends the search."""
        try:
            yield
        except MemoryError:
            raise
        except InputError as error:
            self.failures.append(Failure(name, str(error), refused=True))
        except Exception as error:
            failure = Failure(name, _described(error), refused=False)
            self.failures.append(failure)
            warnings.warn(
                f"'{name}' failed and was left out: {failure.error}", FailedCandidate, stacklevel=3
            )


def _described(error: Exception) -> str:
    """The type and message of an exception, and the line that raised it."""
    raised = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(raised.filename).name}:{raised.lineno})"


def reasons(failures: Sequence[Failure]) -> str:
    """Why nothing was found, in words: the first reason, and how many others there are."""
    if not failures:
        return "no method was tried"
    first, others = failures[0], len(failures) - 1
    more = f" ({others} more failed too)" if others else ""
    return f"{first.name}: {first.error.rstrip('.')}{more}"
