"""Ends a rank when the process that started it has ended, so that no orphaned ranks continue to train.

The starter, the process that starts the ranks, cannot end its children if it is killed. So every process
that raddle or torchrun has started checks once a second whether its parent is still the same. A process
that a user starts from a shell does not check.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
import threading
import time

STARTED_BY = "RADDLE_STARTED_BY"  # environment variable: pid of the process that starts this one
INTERVAL = 1.0  # seconds between two checks of the parent
GRACE = 5.0  # seconds between SIGTERM and the forced exit

_watching = threading.Lock()  # held once the parent is watched


def starter_env() -> dict[str, str]:
    """Returns environment variables to set for a child process, which name this process as its starter."""
    return {STARTED_BY: str(os.getpid())}


def end_with_parent() -> None:
    """Starts to watch the parent, if torchrun or raddle has started this process.

    Call it as early as possible; more calls do nothing.
    """
    # Removed from the environment, because this process's children have another starter.
    starter = os.environ.pop(STARTED_BY, "")
    if not (starter or "TORCHELASTIC_RUN_ID" in os.environ):
        return
    if not _watching.acquire(blocking=False):
        return
    parent = os.getppid()
    # has_ended: the starter ended before this process could check. If the starter still runs but is not the
    # parent, there is a process between them, such as a shell.
    has_ended = starter.isdigit() and int(starter) != parent and not _is_running(int(starter))
    name = "raddle watches its parent"
    threading.Thread(target=_watch, args=(parent, has_ended), name=name, daemon=True).start()


def _is_running(pid: int) -> bool:
    """Returns whether a process runs. On Linux /proc tells its state: Z is a zombie, X is dead."""
    with contextlib.suppress(OSError):  # a zombie still has a pid, but has ended
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs, and belongs to another user
        pass
    return True


def _watch(parent: int, has_ended: bool) -> None:
    """Waits until the parent has ended (`has_ended`: it has already), then ends this process."""
    while not has_ended and os.getppid() == parent:
        time.sleep(INTERVAL)
    rank = os.environ.get("RANK")
    who = "this process" if rank is None else f"rank {rank}"
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        print(f"raddle: {who} ends: the process that started it has ended.", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGTERM)  # a signal handler may clean up
    time.sleep(GRACE)
    os._exit(1)
