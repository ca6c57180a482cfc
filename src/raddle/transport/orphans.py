"""A process that torchrun or raddle has started ends when the one that started it does, however that ends.

A starter that is killed cannot end its children, and ranks would train on. So every rank that raddle
starts, and every rank of a torchrun job, looks once a second whether its parent is still the same. A script
that a user starts from a shell is nobody's rank and is left alone.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
import threading
import time

STARTED_BY = "RADDLE_STARTED_BY"  # in the environment: the process whose end is this one's, too
INTERVAL = 1.0  # seconds
GRACE = 5.0  # seconds between asking this process to end and ending it

_watching = threading.Lock()


def starter_env() -> dict[str, str]:
    """What the environment of a process says that this one starts (or becomes the starter of)."""
    return {STARTED_BY: str(os.getpid())}


def end_with_parent() -> None:
    """Watches the parent from now on, if this process was started by torchrun or by raddle.

    To be called as early as possible; more calls do nothing.
    """
    starter = os.environ.pop(STARTED_BY, "")  # it is not the starter of this process's own children
    if not (starter or "TORCHELASTIC_RUN_ID" in os.environ):
        return
    if not _watching.acquire(blocking=False):
        return
    parent = os.getppid()
    # Another parent, while the starter runs, is a process between the two, as a shell.
    gone = starter.isdigit() and int(starter) != parent and not _is_running(int(starter))
    name = "raddle watches its parent"
    threading.Thread(target=_watch, args=(parent, gone), name=name, daemon=True).start()


def _is_running(pid: int) -> bool:
    with contextlib.suppress(
        OSError
    ):  # one that nobody has waited for yet has a number, but has ended
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        pass
    return True


def _watch(parent: int, gone: bool) -> None:
    while not gone and os.getppid() == parent:
        time.sleep(INTERVAL)
    rank = os.environ.get("RANK")
    who = "this process" if rank is None else f"rank {rank}"
    with contextlib.suppress(OSError, ValueError):  # nobody may read it any more
        print(f"raddle: {who} ends: the process that started it has ended.", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGTERM)  # a handler may put things in order
    time.sleep(GRACE)
    os._exit(1)
