"""Reads from /proc which processes a process has started, and on which addresses it listens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

on_linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def children(parent: int) -> set[int]:
    pids = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _parent(entry) == parent:
            pids.add(int(entry.name))
    return pids


def _parent(entry: Path) -> int | None:
    try:
        # The name, in brackets, may contain spaces; the state and the parent follow after it.
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:  # it has just ended
        return None
    return None if state == "Z" else int(parent)


def alive(pid: int) -> bool:
    return _parent(Path(f"/proc/{pid}")) is not None


def listening(pid: int) -> set[str]:
    """Return the addresses, in the kernel's hexadecimal notation, on which a process listens."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                addresses.add(fields[1].partition(":")[0])
    return addresses
