"""Records the candidates of a search that fail, so that the search goes on with the others.

A candidate that raises InputError is refused: it does not apply to this graph or cluster, which is normal.
Any other exception is a bug in raddle. Attempts records its type, message and line, and also warns.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from raddle.errors import FailedCandidate, InputError, OutOfTime


class Failure(NamedTuple):
    """A candidate that gave no plan, and why. A candidate is a method, a start or a variant of a plan."""

    name: str
    error: str
    refused: bool  # True: it does not apply here (InputError); False: a bug in raddle

    def row(self) -> dict[str, Any]:
        """Returns the failure as an entry of `failed` in plan files and --json output."""
        return self._asdict()


class Attempts:
    """The failures of one search, in the order in which they happened."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Runs the `with` block of one candidate: an exception in it is recorded and suppressed.

        MemoryError and OutOfTime are raised again, KeyboardInterrupt is not caught: they end the search.
        """
        try:
            yield
        except (MemoryError, OutOfTime):
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
    """Returns the type and message of an exception, and the line that raised it."""
    raised = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(raised.filename).name}:{raised.lineno})"


def reasons(failures: Sequence[Failure]) -> str:
    """Returns a clause that says why there is no plan: the first failure, and the number of the others."""
    if not failures:
        return "no method was tried"
    first, other_count = failures[0], len(failures) - 1
    more = f" ({other_count} more failed too)" if other_count else ""
    return f"{first.name}: {first.error.rstrip('.')}{more}"
