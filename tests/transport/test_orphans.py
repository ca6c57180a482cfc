"""Processes that torchrun or raddle has started end when their starter is killed, and no others do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from timeouts import HANG, wait_until

from raddle.transport.orphans import STARTED_BY

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

# A starter: runs its last arguments with the environment that the first one says, and waits to be killed.
STARTER = """
import os, subprocess, sys, time
from raddle.transport.orphans import starter_env
how, *command = sys.argv[1:]
extra = {"raddle": starter_env(), "torchrun": {"TORCHELASTIC_RUN_ID": "none"}, "user": {}}[how]
subprocess.Popen(command, env={**os.environ, **extra}, start_new_session=True)
time.sleep(600)
"""
# A child: it says who it is, waits for `go` if it is to be slow, watches its parent, and works for ever.
CHILD = """
import os, pathlib, signal, sys, time
folder, kind = pathlib.Path(sys.argv[1]), sys.argv[2]
def note(name):
    (folder / name).write_text(str(os.getpid()))
def tidy(number, frame):
    note("tidied")
    sys.exit(0)
rank = os.environ.get("RANK", "0")
from raddle.transport import orphans
orphans.INTERVAL, orphans.GRACE = 0.1, 1.0
if kind == "tidies":
    signal.signal(signal.SIGTERM, tidy)
if kind == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if kind == "slow":
    note("slow" + rank)
    while not (folder / "go").exists():
        time.sleep(0.02)
orphans.end_with_parent()
orphans.end_with_parent()
assert orphans.STARTED_BY not in os.environ
note("rank" + rank)
while True:
    time.sleep(0.02)
"""


class Started:
    """The processes of one test; all of them are ended after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ids: list[int] = []
        (folder / "starter.py").write_text(STARTER)
        (folder / "child.py").write_text(CHILD)

    def child(self, kind: str) -> list[str]:
        return [sys.executable, str(self.folder / "child.py"), str(self.folder), kind]

    def start(self, how: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Returns an environment without variables of raddle or torchrun."""
        clean = {k: v for k, v in os.environ.items() if k not in (STARTED_BY, "RANK")}
        clean.pop("TORCHELASTIC_RUN_ID", None)
        words = [sys.executable, str(self.folder / "starter.py"), how, *command]
        process = subprocess.Popen(words, env=clean, stderr=(self.folder / "said").open("w"))
        self._ids.append(process.pid)
        return process

    def noted(self, name: str) -> int:
        """Returns the pid that a process has written there."""
        file = self.folder / name
        wait_until(lambda: file.exists() and file.read_text() != "")
        self._ids.append(int(file.read_text()))
        return self._ids[-1]

    def end(self) -> None:
        for number in filter(alive, self._ids):
            os.kill(number, signal.SIGKILL)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    made = Started(tmp_path)
    yield made
    made.end()


def status(number: int) -> list[str]:
    """Returns the state and the parent of a process; empty if it has ended."""
    try:
        words = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return []
    return [] if words[0] == "Z" else words


def alive(number: int) -> bool:
    return bool(status(number))


def kill(process: subprocess.Popen[bytes], *, reap: bool = True) -> None:
    process.kill()
    if reap:
        process.wait(HANG)


@pytest.mark.parametrize("how", ["raddle", "torchrun"])
@pytest.mark.parametrize("kind", ["works", "tidies", "ignores"])
def test_a_child_ends_when_its_starter_is_killed(started: Started, how: str, kind: str) -> None:
    starter = started.start(how, started.child(kind))
    child = started.noted("rank0")
    kill(starter)
    wait_until(lambda: not alive(child))
    assert (started.folder / "tidied").exists() == (kind == "tidies")
    said = (started.folder / "said").read_text()
    assert said == "raddle: this process ends: the process that started it has ended.\n"


@pytest.mark.parametrize("reap", [True, False])
def test_a_child_that_comes_to_watch_too_late_ends_too(started: Started, reap: bool) -> None:
    """The starter was killed while the child was importing, and may still be a zombie."""
    starter = started.start("raddle", started.child("slow"))
    child = started.noted("slow0")
    kill(starter, reap=reap)
    wait_until(lambda: status(child)[1:] != [str(starter.pid)])
    (started.folder / "go").touch()
    wait_until(lambda: not alive(child))
    starter.wait(HANG)


def test_a_shell_between_the_two_is_not_the_end(started: Started) -> None:
    line = " ".join(started.child("works"))
    starter = started.start("raddle", ["sh", "-c", f"{line}; true"])
    child = started.noted("rank0")
    time.sleep(0.5)  # it looks ten times a second
    assert alive(child)
    kill(starter)


def test_a_users_script_in_the_background_is_left_alone(started: Started) -> None:
    starter = started.start("user", started.child("works"))
    child = started.noted("rank0")
    kill(starter)
    time.sleep(0.5)
    assert alive(child)


@pytest.mark.parametrize("module", ["torch.distributed.run", "raddle.transport.torchrun"])
def test_ranks_end_when_torchrun_or_who_started_it_is_killed(started: Started, module: str) -> None:
    ranks = ["--standalone", "--nproc-per-node", "2", *started.child("works")[1:]]
    starter = started.start("raddle", [sys.executable, "-m", module, *ranks])
    children = [started.noted("rank0"), started.noted("rank1")]
    agent = int(status(children[0])[1])
    if module == "torch.distributed.run":
        os.kill(agent, signal.SIGKILL)
    else:
        kill(starter)
    wait_until(lambda: not any(map(alive, [agent, *children])))
    kill(starter)
