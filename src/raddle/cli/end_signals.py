"""Ends a verb by SIGTERM as by Ctrl-C, so that what it started is ended and removed."""

import signal
import sys


def end_by_sigterm() -> None:
    """From now on, SIGTERM raises SystemExit: clean-ups of `finally` and `with` run."""
    signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: object) -> None:
    sys.exit(128 + number)
