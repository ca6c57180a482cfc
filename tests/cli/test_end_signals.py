"""SIGTERM ends a verb as Ctrl-C does: what it started is ended and removed."""

from __future__ import annotations

import signal
import subprocess
import sys

SCRIPT = """
import os, signal, time
from raddle.cli.end_signals import end_by_sigterm

end_by_sigterm()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
finally:
    print("cleaned up")
"""


def test_clean_ups_run() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("cleaned up\n", 128 + signal.SIGTERM)


def test_verbs_that_start_processes_use_it() -> None:
    """An experiment may emulate hosts, which would stay as network namespaces."""
    from raddle.cli import lab, reproduce, verify

    assert all(hasattr(module, "end_by_sigterm") for module in (lab, reproduce, verify))
